#!/usr/bin/env python3
"""make_vision_rollout_fixtures.py - tests/data/vision/rollouts.jsonl and rollouts.json: GRPO and PPO on given completions of prompts with images.

    python3 tests/make_vision_rollout_fixtures.py [MODEL...]     (a development tool: see vision_oracle.py)

A line of rollouts.jsonl is a group: the number of its prompt among the records of tests/data/vision/run, completions and rewards. rollouts.json has of
each model ten steps in plain PyTorch with transformers' model, in fp64, and how far PyTorch in fp32 is from them. "grpo": two steps with two groups,
loss_type grpo, beta 0.1, AdamW. "trl" is the same of TRL's GRPOTrainer (fp32), with the model hf/clip_llama. "ppo": two epochs with eight completions; the
critic is the model with the head of vision_records.py (see make_ppo_fixtures.py).
"""
import json
import os
import random
import sys
import tempfile

import torch
import transformers
from PIL import Image
from vision_oracle import MODELS, Inputs, dataset, forget, load
from vision_records import records, score_of

STEPS, GROUPS, GROUP, MOST, LR, BETA, EPSILON, ITERATIONS = 10, 2, 4, 6, 3e-4, 0.1, 0.2, 2
OUT = "tests/data/vision"


def lines():
    draw = random.Random(5)
    for i in range(STEPS // ITERATIONS * GROUPS):
        completions = [[draw.randint(3, 50) for _ in range(draw.randint(1, MOST))] for _ in range(GROUP)]
        yield {"sample": i % 7, "completion_ids": completions, "rewards": [draw.choice([0, 0.5, 1, 2]) for _ in range(GROUP)]}


def logps_of(model, x, completion, temperature=1):
    forget(model)
    n = len(completion)
    ids = torch.cat([x["input_ids"], torch.tensor([completion])], 1)
    types = {k: torch.cat([v, torch.zeros_like(ids[:, :n])], 1) for k, v in x.items() if k.endswith("token_type_ids")}
    z = model(**x | types | {"input_ids": ids}, use_cache=False).logits[0, -n - 1:-1] / temperature
    return torch.log_softmax(z, -1).gather(-1, torch.tensor(completion)[:, None])[:, 0]


def plain(directory, groups, prompts, dtype=torch.float64):
    policy, reference, inputs = (load(transformers.AutoModelForImageTextToText, directory, dtype) for _ in range(2)), None, Inputs(directory)
    policy, reference = policy
    opt = torch.optim.AdamW(policy.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps = []
    for at in range(0, len(groups), GROUPS):
        rows = []
        for g in groups[at:at + GROUPS]:
            r = torch.tensor(g["rewards"], dtype=dtype)
            x = inputs(*prompts[g["sample"]], dtype)
            rows += [(x, c, a) for c, a in zip(g["completion_ids"], (r - r.mean()) / (r.std() + 1e-4))]
        with torch.no_grad():
            old, ref = ([logps_of(m, x, c) for x, c, _ in rows] for m in (policy, reference))
        for _ in range(ITERATIONS):
            loss, kl, n = 0, 0, 0
            for (x, c, a), o, f in zip(rows, old, ref):
                logp = logps_of(policy, x, c)
                ratio, d = (logp - o).exp(), f - logp
                k = d.exp() - d - 1
                loss = loss + (BETA * k - torch.min(ratio * a, ratio.clamp(1 - EPSILON, 1 + EPSILON) * a)).mean() / len(rows)
                kl, n = kl + k.sum().item(), n + len(c)
            opt.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([p for p in policy.parameters() if p.grad is not None], 1.0)
            opt.step()
            steps.append([float(f"{x:.9g}") for x in (loss.item(), norm.item(), kl / n)])
    return steps


def look(model, score, x, completion):
    """Values of the states, the last after the completion if there is room."""
    forget(model)
    n = x["input_ids"].shape[1]
    ids = torch.cat([x["input_ids"], torch.tensor([completion])], 1)
    types = {k: torch.cat([v, torch.zeros_like(ids[:, n:])], 1) for k, v in x.items() if k.endswith("token_type_ids")}
    return (model(**x | types | {"input_ids": ids}, use_cache=False).last_hidden_state[0, n - 1:] @ score)[:MOST]


def joined(rows):
    return torch.cat(list(rows))


def ppo(directory, groups, prompts, dtype=torch.float64):
    policy, reference = (load(transformers.AutoModelForImageTextToText, directory, dtype) for _ in range(2))
    critic, inputs = load(transformers.AutoModel, directory, dtype), Inputs(directory)
    score = torch.nn.Parameter(torch.tensor(score_of(critic.config.get_text_config().hidden_size), dtype=torch.float32).to(dtype))
    params = [*policy.parameters(), *critic.parameters(), score]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps, temperature = [], 0.7 + 1e-7
    for at in range(0, len(groups), GROUPS):
        rows = [(inputs(*prompts[g["sample"]], dtype), c, r) for g in groups[at:at + GROUPS] for c, r in zip(g["completion_ids"], g["rewards"])]
        with torch.no_grad():
            old, ref = ([logps_of(m, x, c, temperature) for x, c, _ in rows] for m in (policy, reference))
            before = [look(critic, score, x, c) for x, c, _ in rows]
            advantages = []
            for (_, c, r), o, f, v in zip(rows, old, ref, before):
                signal = torch.zeros_like(v)
                signal[:len(c)] = -0.05 * (o - f)
                signal[-1] += r
                a, last = torch.zeros_like(v), 0.0
                for t in reversed(range(len(v))):
                    last = signal[t] + (v[t + 1] if t + 1 < len(v) else 0) - v[t] + 0.95 * last
                    a[t] = last
                advantages.append(a)
            goals = [a + v for a, v in zip(advantages, before)]
            flat = joined(a[:len(c)] for a, (_, c, _) in zip(advantages, rows))
            flat = (flat - flat.mean()) * torch.rsqrt(flat.var(unbiased=True) + 1e-8)
        for _ in range(ITERATIONS):
            ratio = torch.exp(joined(logps_of(policy, x, c, temperature) for x, c, _ in rows) - joined(old))
            policy_loss = torch.max(-flat * ratio, -flat * ratio.clamp(1 - EPSILON, 1 + EPSILON)).mean()
            v, was, goal = joined(look(critic, score, x, c) for x, c, _ in rows), joined(before), joined(goals)
            value_loss = 0.5 * torch.max((v - goal) ** 2, (was + (v - was).clamp(-0.2, 0.2) - goal) ** 2).mean()
            opt.zero_grad()
            (policy_loss + 0.1 * value_loss).backward()
            norms = [sum((p.grad**2).sum() for p in of if p.grad is not None).sqrt() for of in (list(policy.parameters()), [*critic.parameters(), score])]
            torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], 1.0)
            opt.step()
            steps.append([float(f"{x.item():.9g}") for x in (policy_loss, value_loss, *norms)])
    return steps


def trl(directory, groups, prompts):
    import trl.trainer.grpo_trainer as grpo_trainer
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    grpo_trainer.shuffle_sequence_dict = lambda batch: batch  # data.shuffle = false

    class Given(GRPOTrainer):
        next = 0

        def _generate(self, asked, *_, **__):
            of = [groups[(Given.next + i // GROUP) % len(groups)] for i in range(len(asked))]
            Given.next += len(asked) // GROUP
            ids = [g["completion_ids"][i % GROUP] for i, g in enumerate(of)]
            return ([prompts[g["sample"]][0] for g in of], ids, None, [[{"role": "assistant", "content": ""}]] * len(ids), None,
                    {"given": [g["rewards"][i % GROUP] for i, g in enumerate(of)]}, None, [])

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token = tokenizer.eos_token
    image = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    config = transformers.AutoConfig.from_pretrained(directory)
    template = "{% for m in messages %}{% for c in m.content %}{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}"
    processor = transformers.LlavaProcessor(image, tokenizer, patch_size=config.vision_config.patch_size, num_additional_image_tokens=1,
                                            vision_feature_select_strategy="default", chat_template=template)
    data = [{"prompt": [{"role": "user", "content": "see"}], "images": [Image.open(p).convert("RGB") for p in prompts[g["sample"]][1]]} for g in groups]
    with tempfile.TemporaryDirectory() as work:
        arguments = GRPOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
                               logging_steps=1, report_to=[], bf16=False, use_cpu=True, save_strategy="no", gradient_checkpointing=False, beta=BETA,
                               num_generations=GROUP, max_completion_length=MOST, shuffle_dataset=False, loss_type="grpo", num_iterations=ITERATIONS,
                               per_device_train_batch_size=GROUP * GROUPS, adam_beta2=0.95, use_bias_correction_kl=False)

        def first(completions, given, **_):
            return given

        model = transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        trainer = Given(model=model, reward_funcs=[first], args=arguments, train_dataset=Dataset.from_list(data), processing_class=processor)
        trainer.train()
    return [[row["loss"], row["grad_norm"], row["kl"]] for row in trainer.state.log_history if "loss" in row]


def main():
    path = f"{OUT}/rollouts.json"
    groups = list(lines())
    with open(f"{OUT}/rollouts.jsonl", "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in groups)
    out = json.load(open(path)) if os.path.exists(path) else {}
    for name in sys.argv[1:] or MODELS + ["trl"]:
        directory = f"{OUT}/{'hf/clip_llama' if name == 'trl' else name}"
        with tempfile.TemporaryDirectory() as tmp:
            ids = dataset(directory, f"{tmp}/prompts.h5", "prompts")
        prompts = [(texts[0], paths) for texts, (_, _, paths) in zip(ids, records(directory))]
        if name == "trl":
            out[name] = {"grpo": {"steps": trl(directory, groups, prompts), "fp32": 0}}
        else:
            out[name] = {}
            for task, steps in (("grpo", plain), ("ppo", ppo)):
                exact, rough = steps(directory, groups, prompts), steps(directory, groups, prompts, torch.float32)
                out[name][task] = {"steps": exact, "fp32": max(abs(a - b) / max(1, abs(b)) for x, y in zip(rough, exact) for a, b in zip(x, y))}
        print(name, out[name], flush=True)
        with open(path, "w") as f:
            f.write("{" + ",\n ".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in out.items()) + "}\n")


if __name__ == "__main__":
    main()
