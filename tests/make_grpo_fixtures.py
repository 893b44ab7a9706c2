#!/usr/bin/env python3
"""make_grpo_fixtures.py - tests/data/grpo: results of TRL's GRPOTrainer for given completions and rewards, with each loss and option.

    python3 tests/make_grpo_fixtures.py             (a development tool: needs torch, transformers, trl)
    python3 tests/make_grpo_fixtures.py advantages  (only the runs of grpo.advantage, which replace those of trl.json)

The model is tests/data/dpo/start, in fp32 on the CPU; 256 ends a completion.
rollouts.jsonl   a group a line: prompt_ids, completion_ids, rewards by two functions (null: does not apply)
trl.json         runs: their name, the settings of dtrain that are the same, TRL's metrics of each of 10 steps (null: missing, or NaN), and for each
                 tensor the norm of its change, and sums of its change times cos(i) and cos(3 i + 1). Runs with grpo.advantage are those of TRL's
                 RLOOTrainer, or plain loops (REINFORCE, REINFORCE++ as OpenRLHF defines it)
"""
import json
import random
import sys
import tempfile

import torch
import trl.trainer.grpo_trainer as grpo_trainer
import trl.trainer.rloo_trainer as rloo_trainer
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

from trl_runs import DATA, adamw, bytes_tokenizer, digits, moved, train, write

STEPS, ROWS, GROUP, MOST, LR = 10, 8, 4, 6, 1e-2
ONE = {"funcs": 1}  # rewards by the first function alone
RUNS = [  # name, settings of TRL, keys of dtrain
    ("defaults", ONE, ""),
    ("grpo", ONE | {"loss_type": "grpo", "beta": 0.1}, "loss_type=grpo beta=0.1"),
    ("bias correction", ONE | {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True, "num_iterations": 2},
     "loss_type=grpo beta=0.1 use_bias_correction_kl=true num_iterations=2"),
    ("bnpo", ONE | {"loss_type": "bnpo"}, "loss_type=bnpo"),
    ("dr_grpo", ONE | {"loss_type": "dr_grpo", "scale_rewards": "none", "num_iterations": 2}, "loss_type=dr_grpo scale_rewards=none num_iterations=2"),
    ("cispo", ONE | {"loss_type": "cispo", "epsilon_high": 1.05, "num_iterations": 3}, "loss_type=cispo epsilon_high=1.05 num_iterations=3"),
    ("gspo", ONE | {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04, "num_iterations": 3},
     "loss_type=grpo importance_sampling_level=sequence epsilon=0.03 epsilon_high=0.04 num_iterations=3"),
    ("gspo with kl", ONE | {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.2, "use_bias_correction_kl": True, "num_iterations": 2},
     "loss_type=grpo importance_sampling_level=sequence beta=0.2 use_bias_correction_kl=true num_iterations=2"),
    ("two-sided", ONE | {"epsilon": 0.05, "epsilon_high": 0.1, "delta": 1.2, "num_iterations": 3}, "epsilon=0.05 epsilon_high=0.1 delta=1.2 num_iterations=3"),
    ("two steps a generation", ONE | {"loss_type": "grpo", "steps_per_generation": 2}, "loss_type=grpo steps_per_generation=2"),
    ("accumulation", ONE | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, "micro=4"),
    ("two generations a step", ONE | {"loss_type": "grpo", "scale_rewards": "batch", "gradient_accumulation_steps": 2, "steps_per_generation": 1},
     "batch=16 loss_type=grpo scale_rewards=batch steps_per_generation=1"),
    ("top entropies", ONE | {"top_entropy_quantile": 0.4, "beta": 0.1}, "top_entropy_quantile=0.4 beta=0.1"),
    ("entropy bonus", ONE | {"entropy_coef": 0.1, "temperature": 0.7}, "ent_coef=0.1 temperature=0.7"),
    ("truncated ones masked", ONE | {"mask_truncated_completions": True, "scale_rewards": "batch"}, "mask_truncated_completions=true scale_rewards=batch"),
    ("truncated ones masked, grpo", ONE | {"mask_truncated_completions": True, "loss_type": "grpo", "num_iterations": 2},
     "mask_truncated_completions=true loss_type=grpo num_iterations=2"),
    ("two functions", {"funcs": 2, "reward_weights": [1.0, 0.5]}, "reward_weights=1,0.5"),
    ("normalised first", {"funcs": 2, "reward_weights": [1.0, 0.5], "multi_objective_aggregation": "normalize_then_sum"},
     "reward_weights=1,0.5 multi_objective_aggregation=normalize_then_sum"),
    ("overlong", {"funcs": 1, "overlong": True, "reward_weights": [1.0, 0.3]}, "overlong_cache=4 overlong_penalty=0.3"),
    ("temperature", ONE | {"temperature": 1.7, "beta": 0.1, "num_iterations": 2}, "temperature=1.7 beta=0.1 num_iterations=2"),
    ("synced reference", ONE | {"beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 3, "ref_model_mixup_alpha": 0.7},
     "beta=0.5 sync_reference_steps=3 sync_reference_mixup=0.7"),
    ("sapo", ONE | {"loss_type": "sapo", "num_iterations": 2}, "loss_type=sapo num_iterations=2"),
    ("luspo", ONE | {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
     "loss_type=luspo importance_sampling_level=sequence num_iterations=2"),
    ("vespo", ONE | {"loss_type": "vespo", "num_iterations": 2}, "loss_type=vespo num_iterations=2"),
    ("two steps, twice", ONE | {"loss_type": "dr_grpo", "scale_rewards": "batch", "mask_truncated_completions": True, "temperature": 0.6, "num_iterations": 2,
                                "steps_per_generation": 2},
     "loss_type=dr_grpo scale_rewards=batch mask_truncated_completions=true temperature=0.6 num_iterations=2 steps_per_generation=2"),
    ("three functions normalised first", {"funcs": 2, "overlong": True, "reward_weights": [1.0, -0.5, 2.0], "multi_objective_aggregation": "normalize_then_sum",
                                          "beta": 0.1}, "reward_weights=1,-0.5 overlong_cache=4 overlong_penalty=2 multi_objective_aggregation=normalize_then_sum beta=0.1"),
    ("reference synced within a generation", ONE | {"loss_type": "grpo", "beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0,
                                                    "num_iterations": 3, "steps_per_generation": 2},
     "loss_type=grpo beta=0.5 sync_reference_steps=2 sync_reference_mixup=1 num_iterations=3 steps_per_generation=2"),
    ("bnpo with top entropies", ONE | {"loss_type": "bnpo", "top_entropy_quantile": 0.2, "num_iterations": 2, "epsilon": 0.02, "epsilon_high": 0.5, "delta": 2.0},
     "loss_type=bnpo top_entropy_quantile=0.2 num_iterations=2 epsilon=0.02 epsilon_high=0.5 delta=2"),
    ("vespo by sequence", ONE | {"loss_type": "vespo", "importance_sampling_level": "sequence", "vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0, "num_iterations": 3, "beta": 0.05,
                                 "mask_truncated_completions": True},
     "loss_type=vespo importance_sampling_level=sequence vespo_k_pos=1 vespo_lambda_neg=4 num_iterations=3 beta=0.05 mask_truncated_completions=true"),
    ("off-policy mask", ONE | {"off_policy_mask_threshold": 0.01, "num_iterations": 3}, "off_policy_mask_threshold=0.01 num_iterations=3"),
]
RLOO = [  # likewise, of TRL's RLOOTrainer; all with loss_type=grpo importance_sampling_level=product
    ("rloo", ONE | {"beta": 0.0}, ""),
    ("rloo with kl", ONE | {"beta": 0.2, "num_iterations": 2}, "beta=0.2 num_iterations=2"),
    ("rloo normalised", ONE | {"beta": 0.1, "normalize_advantages": True, "reward_clip_range": (0.4, 1.2), "num_iterations": 3, "epsilon": 0.05, "temperature": 0.8},
     "beta=0.1 normalize_advantages=true reward_clip_range=0.4,1.2 num_iterations=3 epsilon=0.05 temperature=0.8"),
    ("rloo of two functions", {"funcs": 2, "reward_weights": [1.0, 0.5], "beta": 0.3, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6},
     "reward_weights=1,0.5 beta=0.3 sync_reference_steps=2"),
    ("rloo in two steps", ONE | {"beta": 0.1, "steps_per_generation": 2}, "beta=0.1 steps_per_generation=2"),
]
PLAIN = [  # name, settings of plain(), keys of dtrain
    ("reinforce", {"method": "reinforce", "beta": 0.2}, "beta=0.2"),
    ("reinforce normalised", {"method": "reinforce", "normalize": True, "iterations": 2}, "normalize_advantages=true num_iterations=2"),
    ("reinforce++", {"method": "reinforce++", "beta": 0.3, "iterations": 2}, "beta=0.3 num_iterations=2"),
    ("reinforce++ without kl", {"method": "reinforce++", "clip": (0.5, 1.0)}, "reward_clip_range=0.5,1"),
    ("reinforce++ with kl in the loss", {"method": "reinforce++", "beta": 0.3, "in_loss": "k3", "iterations": 2}, "beta=0.3 kl_in_reward=false num_iterations=2"),
    ("reinforce++-baseline", {"method": "reinforce++-baseline", "beta": 0.3, "in_loss": "k2", "iterations": 2}, "beta=0.3 kl_estimator=k2 num_iterations=2"),
    ("reinforce++-baseline with kl in the reward", {"method": "reinforce++-baseline", "beta": 0.3, "iterations": 2, "epsilon": 0.02},
     "beta=0.3 kl_in_reward=true num_iterations=2 epsilon=0.02"),
    ("group with kl in the reward", {"method": "group", "beta": 0.3}, "beta=0.3 kl_in_reward=true"),
]
out = DATA / "grpo"
out.mkdir(exist_ok=True)

# Groups of completions: some end, some are cut; now and then a group of equal rewards, and functions that do not apply.
draw = random.Random(11)
lines = []
for i in range(2 * STEPS):
    completions, rewards = [], []
    for _ in range(GROUP):
        ids = [draw.choice(b"abcdefgh") for _ in range(draw.randint(1, MOST))]
        if len(ids) < MOST:
            ids[-1] = 256
        completions.append(ids)
        rewards.append([0.5 if i % 7 == 3 else draw.choice([0, 1, 1, 2, 3]) / 2, None if draw.random() < 0.3 else draw.choice([-1, 0, 1])])
    if i % 7 == 5:
        rewards[1] = [None, None]
    lines.append({"prompt_ids": list(f"{draw.choice(['so is', 'it was', 'who'])} {i % 10}".encode()), "completion_ids": completions, "rewards": rewards})
with open(out / "rollouts.jsonl", "w") as f:
    f.writelines(json.dumps(line) + "\n" for line in lines)
only = sys.argv[1:] == ["advantages"]

tokenizer = bytes_tokenizer(padding_side="left")
grpo_trainer.shuffle_sequence_dict = rloo_trainer.shuffle_sequence_dict = lambda batch: batch  # data.shuffle = false


def reward_0(completions, first, **_):
    return first


def reward_1(completions, second, **_):
    return second


class Given:
    """A rollout_func: the groups one after the other, whatever the prompts."""

    def __init__(self):
        self.next = 0

    def __call__(self, prompts, trainer):
        groups = [lines[(self.next + i) % len(lines)] for i in range(len(prompts) // GROUP)]
        self.next += len(groups)
        rewards = [r for g in groups for r in g["rewards"]]
        return {"prompt_ids": [g["prompt_ids"] for g in groups for _ in range(GROUP)], "completion_ids": [c for g in groups for c in g["completion_ids"]],
                "logprobs": None, "first": [r[0] for r in rewards], "second": [r[1] for r in rewards]}


class GivenRLOO(RLOOTrainer):
    """The same, for a trainer without rollout_func."""

    given = None

    def _tokenize_prompts(self, prompts):
        self.rows = self.given(prompts, self)
        GivenRLOO.rewards = self.rows["first"], self.rows["second"]
        return self.rows["prompt_ids"], None, {}

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields):
        return self.rows["completion_ids"]


def logps_of(model, row):
    prompt, completion, _ = row
    logp = torch.log_softmax(model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1].float(), -1)
    return logp.gather(-1, torch.tensor(completion)[:, None])[:, 0]


def advantages_of(method, rewards, kls, beta, normalize):
    """Of each token. rewards: NaN: none; kls: of each token, log policy - log reference."""
    r, nan = torch.tensor(rewards, dtype=torch.float64), torch.nan
    of_tokens = method.startswith("reinforce++")
    if not of_tokens:
        r = r - beta * torch.stack([k.sum() for k in kls])
    mean = r.view(-1, GROUP).nanmean(1).repeat_interleave(GROUP)
    if method == "group":
        groups = r.view(-1, GROUP)
        std = torch.stack([g[~g.isnan()].std() for g in groups]).repeat_interleave(GROUP)
        a = (r - mean) / (std + 1e-4)
    else:
        a = r - {"reinforce": r.nanmean(), "reinforce++": 0, "reinforce++-baseline": mean}[method]
    if normalize:
        a = (a - a.nanmean()) / (a[~a.isnan()].std() + 1e-4)
    returns = [x - beta * k.flip(0).cumsum(0).flip(0) * of_tokens + 0 * k for x, k in zip(a, kls)]
    if of_tokens:
        every = torch.cat([g for g in returns if not g.isnan().any()])
        returns = [(g - every.mean()) * every.var(unbiased=False).clamp(min=1e-8).rsqrt() for g in returns]
    return [g.nan_to_num(nan=0.0) for g in returns]


def plain(method, beta=0.0, in_loss="", iterations=1, normalize=False, clip=None, epsilon=0.2):
    policy, reference = (LlamaForCausalLM.from_pretrained(DATA / "dpo" / "start", dtype=torch.float32).eval() for _ in range(2))
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    optimizer = adamw([policy], LR)
    steps, at = [], 0
    for _ in range(STEPS // iterations):
        groups = [lines[(at + i) % len(lines)] for i in range(ROWS // GROUP)]
        at += len(groups)
        # weights 1 and 0: null of the first function alone counts as 0
        rows = [(g["prompt_ids"], c, torch.nan if r == [None, None] else r[0] or 0.0) for g in groups for c, r in zip(g["completion_ids"], g["rewards"])]
        with torch.no_grad():
            old, ref = [logps_of(policy, row) for row in rows], [logps_of(reference, row) for row in rows]
        n = sum(len(o) for o in old)
        rewards = [x if clip is None or x != x else min(max(x, clip[0]), clip[1]) for _, _, x in rows]
        kls = [(o - f).double() for o, f in zip(old, ref)]
        advantages = advantages_of(method, rewards, kls, 0.0 if in_loss else beta, normalize)
        for _ in range(iterations):
            loss, kl = 0, sum(k.sum().item() for k in kls)
            kl = 0 if in_loss else kl
            for row, o, f, a in zip(rows, old, ref, advantages):
                logp = logps_of(policy, row)
                ratio = (logp - o).exp()
                loss = loss - torch.min(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a).sum() / n
                if in_loss:
                    d = f - logp
                    k = d.exp() - 1 - d if in_loss == "k3" else d * d / 2
                    loss, kl = loss + beta * k.sum() / n, kl + k.sum().item()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item()
            optimizer.step()
            known = [x for _, _, x in rows if x == x]
            steps.append([digits(x) for x in (loss.item(), norm, kl / n if beta else None, sum(known) / len(known))])
    return {"metrics": ["loss", "grad_norm", "kl", "reward"], "steps": steps, "moved": moved(policy, start)}


runs = json.load(open(out / "trl.json"))[: len(RUNS)] if only else []
with tempfile.TemporaryDirectory() as work:
    for name, settings, keys in RUNS[len(runs):]:
        settings = dict(settings)
        funcs = [reward_0, reward_1][: settings.pop("funcs")]
        keys = f"reward_weights=1,0 {keys}".rstrip() if len(funcs) == 1 else keys
        if settings.pop("overlong", False):
            funcs.append(get_soft_overlong_punishment(MOST, 4))
        defaults = {"per_device_train_batch_size": ROWS, "use_bias_correction_kl": False}
        arguments = GRPOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0,
                               logging_steps=1, report_to=[], bf16=False, use_cpu=True, save_strategy="no", gradient_checkpointing=False,
                               num_generations=GROUP, max_completion_length=MOST, shuffle_dataset=False, **(defaults | settings))
        model = LlamaForCausalLM.from_pretrained(DATA / "dpo" / "start", dtype=torch.float32)
        trainer = GRPOTrainer(model=model, reward_funcs=funcs, args=arguments, train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(2 * STEPS)]),
                              processing_class=tokenizer, rollout_func=Given())
        left_out = {"learning_rate", "sampling"}
        if arguments.gradient_accumulation_steps > 1:
            left_out.add("entropy")  # a mean of the means of micro-batches
        if arguments.gradient_accumulation_steps > arguments.steps_per_generation:  # means over generations, where ours are over the step
            left_out |= {"completions/min_length", "completions/max_length"} | {f"completions/{k}_terminated_length" for k in ("min", "mean", "max")}
        run = train(trainer, left_out)
        run["metrics"] = [k.replace("soft_overlong_punishment_reward", "overlong") for k in run["metrics"]]
        runs.append({"name": name, "keys": keys} | run)
        print(name, [round(s[0], 5) for s in run["steps"]])
    for name, settings, keys in RLOO:
        settings = dict(settings)
        funcs = [lambda completions, **_: GivenRLOO.rewards[0], lambda completions, **_: GivenRLOO.rewards[1]][: settings.pop("funcs")]
        for k, f in enumerate(funcs):
            f.__name__ = f"reward_{k}"
        keys = f"reward_weights=1,0 {keys}".rstrip() if len(funcs) == 1 else keys
        arguments = RLOOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0,
                               logging_steps=1, report_to=[], bf16=False, use_cpu=True, save_strategy="no", gradient_checkpointing=False,
                               num_generations=GROUP, max_completion_length=MOST, shuffle_dataset=False, per_device_train_batch_size=ROWS, **settings)
        GivenRLOO.given = Given()
        model = LlamaForCausalLM.from_pretrained(DATA / "dpo" / "start", dtype=torch.float32)
        trainer = GivenRLOO(model=model, reward_funcs=funcs, args=arguments, train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(2 * STEPS)]),
                            processing_class=tokenizer)
        # kl: of the generation, where ours is of the step's completions
        run = train(trainer, {"learning_rate", "sampling"} | ({"kl"} if arguments.steps_per_generation > 1 else set()))
        runs.append({"name": name, "keys": f"advantage=rloo loss_type=grpo importance_sampling_level=product {keys}"} | run)
        print(name, [round(s[0], 5) for s in run["steps"]])
for name, settings, keys in PLAIN:
    run = plain(**settings)
    runs.append({"name": name, "keys": f"advantage={settings['method']} reward_weights=1,0 {keys}".rstrip()} | run)
    print(name, [round(s[0], 5) for s in run["steps"]])
write(out / "trl.json", runs)
