#!/usr/bin/env python3
"""make_dpo_fixtures.py - tests/data/dpo: a tiny language model of transformers, and the results of TRL's DPOTrainer for it with each loss.

    python3 tests/make_dpo_fixtures.py        (a development tool: needs torch, transformers, trl; after make_reward_fixtures.py)
    python3 tests/make_dpo_fixtures.py alone  (only the runs without a reference, which replace those of trl.json)

The pairs are those of tests/data/rm, as bytes with the end of text (256) after each answer, or as letters for models of tests/data/hf.
start/     LlamaForCausalLM
trl.json   runs (tests/trl_runs.py) of ten steps; those without a reference by TRL's ORPOTrainer and CPOTrainer
judge/     LlamaForSequenceClassification, a safety model
safe.txt   Safe-MM-DPO, by plain loops: a line a step with the numbers of dtrain's metrics whose names the first line has; a line "run KEYS" names
           the settings of dtrain that are the same
batch.txt  likewise, for one beta for all pairs of a step (beta-DPO)
"""
import json
import math
import shutil
import sys
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import trl_runs
from fixtures import MASK, mix64

STEPS, LOOPS, LR = 10, 6, 1e-2
OWN = "dpo/start"
RUNS = [  # loss_type, settings of TRL, keys of dtrain, start, data
    ("sigmoid", {}, "", OWN, "pairs"),
    ("robust", {"label_smoothing": 0.1}, "dpo.label_smoothing=0.1", OWN, "pairs"),
    ("hinge", {}, "", OWN, "pairs"),
    ("ipo", {}, "", OWN, "pairs"),
    ("sigmoid_norm", {}, "", OWN, "pairs"),
    ("exo_pair", {"label_smoothing": 0.01}, "dpo.label_smoothing=0.01", OWN, "pairs"),
    ("nca_pair", {}, "", OWN, "pairs"),
    ("bco_pair", {}, "", OWN, "pairs"),
    ("sppo_hard", {}, "", OWN, "pairs"),
    ("apo_zero", {}, "", OWN, "pairs"),
    ("apo_down", {}, "", OWN, "pairs"),
    ("discopop", {}, "", OWN, "pairs"),
    ("sft", {}, "", OWN, "pairs"),
    ("sigmoid,bco_pair,sft", {"loss_weights": [0.8, 0.2, 1.0]}, "dpo.loss_weights=0.8,0.2,1", OWN, "pairs"),
    ("sigmoid", {"f_divergence_type": "js_divergence"}, "dpo.f_divergence=js_divergence", OWN, "pairs"),
    ("sigmoid", {"f_divergence_type": "forward_kl"}, "dpo.f_divergence=forward_kl", OWN, "pairs"),
    ("hinge", {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
     "dpo.f_divergence=alpha_divergence dpo.f_alpha_divergence_coef=0.7", OWN, "pairs"),
    ("ipo", {"f_divergence_type": "js_divergence"}, "dpo.f_divergence=js_divergence", OWN, "pairs"),
    ("sigmoid", {"ld_alpha": 0.4}, "dpo.ld_alpha=0.4", OWN, "pairs"),
    ("aot", {"label_smoothing": 0.1}, "dpo.label_smoothing=0.1", OWN, "pairs"),
    ("aot_unpaired", {}, "", OWN, "pairs"),
    ("sigmoid,aot_unpaired", {"loss_weights": [1.0, 0.5]}, "dpo.loss_weights=1,0.5", OWN, "pairs"),
    ("sigmoid", {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6}, "dpo.sync_reference_steps=2", OWN, "pairs"),
    ("sigmoid", {"use_weighting": True}, "dpo.use_wpo=true", OWN, "pairs"),
    ("sigmoid_norm,ipo", {"use_weighting": True, "loss_weights": [0.5, 1.0]}, "dpo.use_wpo=true dpo.loss_weights=0.5,1", OWN, "pairs"),
    # an incomplete last step in each epoch, schedules, other families, tied embeddings, windows, a text that is cut
    ("sigmoid", {"lr_scheduler_type": "linear", "warmup_steps": 3, "adam_beta2": 0.95, "max_grad_norm": 0.3},
     "scheduler.type=linear scheduler.warmup_steps=3 optimizer.betas=0.9,0.95 optimizer.max_grad_norm=0.3", "hf/llama_linear", "more"),
    ("apo_zero,sft", {"lr_scheduler_type": "cosine", "warmup_steps": 0.2, "weight_decay": 0.0, "loss_weights": [1.0, 0.25]},
     "scheduler.type=cosine scheduler.warmup_ratio=0.2 optimizer.weight_decay=0 dpo.loss_weights=1,0.25", "hf/gpt2", "more"),
    ("ipo", {"lr_scheduler_type": "cosine", "beta": 0.3}, "scheduler.type=cosine dpo.beta=0.3", "hf/qwen2", "more"),
    ("aot", {"lr_scheduler_type": "linear", "label_smoothing": 0.2, "ld_alpha": 0.5}, "scheduler.type=linear dpo.label_smoothing=0.2 dpo.ld_alpha=0.5",
     "hf/qwen3", "more"),
    ("exo_pair", {"label_smoothing": 0.1, "use_weighting": True, "lr_scheduler_type": "linear", "warmup_steps": 2},
     "dpo.label_smoothing=0.1 dpo.use_wpo=true scheduler.type=linear scheduler.warmup_steps=2", "hf/mistral", "more"),
    ("sigmoid", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "batch.micro_batch_size=2", OWN, "pairs"),
]
ALONE = [  # likewise, without a reference; dtrain's loss, TRL's settings
    ("orpo", {}, "", OWN, "pairs"),
    ("orpo", {"beta": 0.7}, "dpo.beta=0.7", OWN, "pairs"),
    ("cpo", {"loss_type": "sigmoid"}, "", OWN, "pairs"),
    ("cpo", {"loss_type": "sigmoid", "label_smoothing": 0.1, "cpo_alpha": 0.3, "beta": 0.3}, "dpo.label_smoothing=0.1 dpo.cpo_alpha=0.3 dpo.beta=0.3", OWN, "pairs"),
    # of sums of log-probabilities TRL's powers are NaN
    ("cpo_ipo", {"loss_type": "ipo", "alpha": -0.3, "cpo_alpha": 0.0}, "dpo.alphapo_alpha=-0.3 dpo.cpo_alpha=0", OWN, "pairs"),
    ("cpo_hinge", {"loss_type": "hinge"}, "", OWN, "pairs"),
    ("cpo_ipo", {"loss_type": "ipo", "cpo_alpha": 0.5}, "dpo.cpo_alpha=0.5", OWN, "pairs"),
    ("simpo", {"loss_type": "simpo", "cpo_alpha": 0.0}, "", OWN, "pairs"),
    ("simpo", {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.4, "label_smoothing": 0.05},
     "dpo.beta=2 dpo.simpo_gamma=1.4 dpo.label_smoothing=0.05", OWN, "pairs"),
    ("simpo", {"loss_type": "simpo", "cpo_alpha": 0.5, "beta": 2.0}, "dpo.beta=2 dpo.cpo_alpha=0.5", OWN, "pairs"),  # CPO-SimPO
    ("simpo", {"loss_type": "alphapo", "alpha": 0.25, "beta": 2.5, "simpo_gamma": 0.3}, "dpo.beta=2.5 dpo.alphapo_alpha=0.25 dpo.simpo_gamma=0.3", OWN, "pairs"),
    # an incomplete last step in each epoch, schedules, other families, a text that is cut
    ("orpo", {"lr_scheduler_type": "linear", "warmup_steps": 3, "max_grad_norm": 0.3},
     "scheduler.type=linear scheduler.warmup_steps=3 optimizer.max_grad_norm=0.3", "hf/llama_linear", "more"),
    ("simpo", {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "lr_scheduler_type": "cosine"}, "dpo.beta=2 scheduler.type=cosine", "hf/gpt2", "more"),
    ("cpo", {"loss_type": "sigmoid", "lr_scheduler_type": "cosine"}, "scheduler.type=cosine", "hf/qwen2", "more"),
]
here = trl_runs.DATA
out = here / "dpo"
alone = sys.argv[1:] == ["alone"]
if not alone:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    torch.manual_seed(6)
    config = LlamaConfig(vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                         max_position_embeddings=64, initializer_range=0.2, pad_token_id=257, bos_token_id=256, eos_token_id=256)
    LlamaForCausalLM(config).save_pretrained(out / "start")
records = [json.loads(line) for line in open(here / "rm" / "pairs.jsonl")]
more = [json.loads(line) for line in open(here / "rm" / "more.jsonl")]
DATA = {"pairs": (trl_runs.bytes_tokenizer(), records, 64), "more": (trl_runs.tokenizer_of(list(b" abcdefghijklmnopqrstuvwxyz")), more, 28)}
assert DATA["pairs"][0]("so is")["input_ids"] == list(b"so is")

runs = json.load(open(out / "trl.json"))[: len(RUNS)] if alone else []
for loss, settings, keys, start, data in RUNS[len(runs):]:
    tokenizer, pairs, max_length = DATA[data]
    rows = Dataset.from_list([{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in pairs])
    defaults = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0}
    with tempfile.TemporaryDirectory() as work:
        arguments = DPOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, max_length=max_length,
                              use_cpu=True, save_strategy="no", gradient_checkpointing=False, loss_type=loss.split(","), **(defaults | settings))
        model, reference = (AutoModelForCausalLM.from_pretrained(here / start, dtype=torch.float32) for _ in range(2))
        trainer = trl_runs.in_order(DPOTrainer)(model=model, ref_model=reference, args=arguments, train_dataset=rows, processing_class=tokenizer)
        # means over tokens: of micro-batches TRL has the mean of their means
        left_out = {"entropy", "logits/chosen", "logits/rejected", "mean_token_accuracy"} if arguments.gradient_accumulation_steps > 1 else ()
        name = f"{len(runs) + 1} {loss}"
        runs.append({"name": name, "keys": f"dpo.loss_type={loss} {keys}".rstrip(), "start": start, "data": data} | trl_runs.train(trainer, left_out))
    print(name, keys, [row[0] for row in runs[-1]["steps"]])
for loss, settings, keys, start, data in ALONE:
    tokenizer, pairs, max_length = DATA[data]
    rows = Dataset.from_list([{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in pairs])
    kind, trainer_kind = (ORPOConfig, ORPOTrainer) if loss == "orpo" else (CPOConfig, CPOTrainer)
    defaults = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0}
    with tempfile.TemporaryDirectory() as work:
        arguments = kind(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, max_length=max_length,
                         use_cpu=True, save_strategy="no", gradient_checkpointing=False, remove_unused_columns=False, **(defaults | settings))
        model = AutoModelForCausalLM.from_pretrained(here / start, dtype=torch.float32)
        trainer = trl_runs.in_order(trainer_kind)(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
        # TRL's means of logits include prompts and padding; without the term it logs 0
        left_out = {"logits/chosen", "logits/rejected"} | ({"nll_loss"} if getattr(arguments, "cpo_alpha", 1) == 0 else set())
        name = f"{len(runs) + 1} {loss}"
        runs.append({"name": name, "keys": f"dpo.loss_type={loss} {keys}".rstrip(), "start": start, "data": data} | trl_runs.train(trainer, left_out))
    print(name, keys, [row[0] for row in runs[-1]["steps"]])
trl_runs.write(out / "trl.json", runs)
if alone:
    sys.exit()

# ---- Safe-MM-DPO --------------------------------------------------------------------------------------------------------------------------------
torch.manual_seed(8)
LlamaForSequenceClassification(LlamaConfig(
    vocab_size=258, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    initializer_range=0.5, num_labels=1, pad_token_id=257, bos_token_id=256, eos_token_id=256)).save_pretrained(out / "judge")
BETA, W, K, ETA, LIMIT, KL_COEF, BATCH = 0.1, 0.5, 0.5, 0.5, 0.2, 0.3, 4
SHOWN = ["loss", "grad_norm", "dpo/rewards/chosen", "dpo/rewards/rejected", "dpo/kl", "dpo/delta_helpful", "dpo/delta_harmless", "dpo/beta", "dpo/beta_harmless",
         "dpo/loss_helpful", "dpo/loss_harmless", "dpo/cost", "dpo/cost_ema", "dpo/lambda"]
SAFE = [("full", False), ("k3", False), ("full", True)]


def text_of(record, side):
    prompt = list(record["prompt"].encode())
    return torch.tensor([prompt + list(record[side].encode()) + [256]]), len(prompt)


def answer(model, record, side):
    """Log-probabilities of the tokens of an answer, and all of their distributions."""
    ids, n_prompt = text_of(record, side)
    logp = torch.log_softmax(model(ids).logits[0, n_prompt - 1:-1].float(), -1)
    return logp.gather(-1, ids[0, n_prompt:, None])[:, 0], logp


def train_safely(estimator, average):
    load = lambda path, kind: kind.from_pretrained(path, dtype=torch.float32).eval()
    policy, reference = (load(out / "start", LlamaForCausalLM) for _ in range(2))
    helpful, harmless = load(here / "rm" / "start", LlamaForSequenceClassification), load(out / "judge", LlamaForSequenceClassification)
    optimizer = trl_runs.adamw([policy], LR)
    log_lambda, ema = 0.0, None
    for step in range(LOOPS):
        pairs = [records[(step * BATCH + i) % len(records)] for i in range(BATCH)]
        n_chosen = sum(len(r["chosen"].encode()) + 1 for r in pairs)
        lam = min(max(math.exp(log_lambda), 0.01), 10)
        sums = dict.fromkeys(SHOWN, 0.0)
        total = 0
        for r in pairs:
            ratios, means, score = [], [], {}
            for side in ("chosen", "rejected"):
                taken, every = answer(policy, r, side)
                with torch.no_grad():
                    ref_taken, ref_every = answer(reference, r, side)
                    ids, _ = text_of(r, side)
                    score[side] = helpful(ids).logits.item(), harmless(ids).logits.item()
                ratios.append((taken - ref_taken).mean() if average else (taken - ref_taken).sum())
                means.append(taken.mean().item())
                if side == "chosen":
                    off = ref_taken - taken
                    kl = ((every.exp() * (every - ref_every)).sum(-1) if estimator == "full" else off.exp() - 1 - off).sum()
            deltas = [score["chosen"][k] - score["rejected"][k] for k in range(2)]
            betas = [BETA * (1 + W * (1 - math.exp(-K * max(d, 0)))) for d in deltas]
            losses = [-torch.nn.functional.logsigmoid(b * (ratios[0] - ratios[1])) for b in betas]
            first = 1 / (1 + math.exp(means[1] - means[0]))
            total = total + (losses[0] / (1 + lam) + lam / (1 + lam) * losses[1]) / BATCH + KL_COEF * kl / n_chosen
            for name, x in zip(SHOWN[2:], [betas[0] * ratios[0].item(), betas[0] * ratios[1].item(), kl.item() * BATCH / n_chosen, *deltas, *betas,
                                           losses[0].item(), losses[1].item(), -first * score["chosen"][1] - (1 - first) * score["rejected"][1]]):
                sums[name] += x / BATCH
        optimizer.zero_grad()
        total.backward()
        sums["loss"], sums["grad_norm"] = total.item(), torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item()
        optimizer.step()
        cost = sums["dpo/cost"]
        ema = cost if ema is None else 0.95 * ema + 0.05 * cost
        log_lambda += ETA * lam * (ema - LIMIT)
        sums["dpo/cost_ema"], sums["dpo/lambda"] = ema, lam
        yield [sums[name] for name in SHOWN]


with open(out / "safe.txt", "w") as f:
    f.write(" ".join(SHOWN) + "\n")
    for estimator, average in SAFE:
        f.write(f"run dpo.kl_estimator={estimator} dpo.average={str(average).lower()} dpo.lambda_lr={ETA} dpo.cost_limit={LIMIT} dpo.kl_coef={KL_COEF}\n")
        f.writelines(" ".join(f"{x:.7g}" for x in row) + "\n" for row in train_safely(estimator, average))

# ---- one beta for all pairs of a step ------------------------------------------------------------------------------------------------------------
SHOWN = ["loss", "grad_norm", "dpo/beta", "dpo/gap_mean", "dpo/gap_std", "dpo/frac_kept", "dpo/rewards/margins"]
BATCHED = [(1.0, 0.6, 0.9, ""), (0.8, 0.6, 0.9, ""), (0.5, 2.0, 0.5, ""), (0.5, 0.6, 0.9, "sft")]  # share kept, w (2: beta reaches its least), momentum, one more loss
SEED, FILTER = 1234, 8


def drawn(gaps, mean, deviation, n_kept, first):
    """Numbers of pairs without replacement, by Gaussian weights: the greatest logarithms of weights with Gumbel noise."""
    def key(i):
        u = ((mix64((mix64(mix64(SEED) ^ FILTER << 32) + first + i) & MASK) >> 12) + 0.5) * 2.0**-52
        off = (gaps[i] - mean) / deviation if deviation > 0 else 0
        return -off * off / 2 - math.log(-math.log(u))
    return sorted(range(len(gaps)), key=key, reverse=True)[:n_kept]


def train_by_batches(share, w, momentum, more):
    policy, reference = (LlamaForCausalLM.from_pretrained(out / "start", dtype=torch.float32).eval() for _ in range(2))
    optimizer = trl_runs.adamw([policy], LR)
    mean = deviation = None
    for step in range(LOOPS):
        pairs = [records[(step * BATCH + i) % len(records)] for i in range(BATCH)]
        gaps, nll, n_chosen = [], 0, 0
        for r in pairs:
            ratios = []
            for side in ("chosen", "rejected"):
                taken, _ = answer(policy, r, side)
                with torch.no_grad():
                    ref_taken, _ = answer(reference, r, side)
                ratios.append((taken - ref_taken).sum())
                if side == "chosen":
                    nll, n_chosen = nll - taken.sum(), n_chosen + len(taken)
            gaps.append(ratios[0] - ratios[1])
        known = torch.stack(gaps).detach().double()
        old = 0 if mean is None else momentum
        mean = old * (mean or 0) + (1 - old) * known.mean().item()
        deviation = old * (deviation or 0) + (1 - old) * known.std().item()
        kept = drawn(known.tolist(), mean, deviation, int(share * BATCH), step * BATCH)
        beta = max(BETA * (1 + w * (known[kept].mean().item() - mean)), 1e-3)
        loss = torch.stack([-torch.nn.functional.logsigmoid(beta * gaps[i]) for i in kept]).mean()
        if more == "sft":
            loss = loss + nll / n_chosen
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item()
        optimizer.step()
        yield [loss.item(), norm, beta, mean, deviation, len(kept) / BATCH, beta * known.mean().item()]


with open(out / "batch.txt", "w") as f:
    f.write(" ".join(SHOWN) + "\n")
    for share, w, momentum, more in BATCHED:
        f.write(f"run run.seed={SEED} dpo.beta_keep={share} dpo.beta_w={w} dpo.beta_momentum={momentum}{' dpo.loss_type=sigmoid,sft' * (more == 'sft')}\n")
        f.writelines(" ".join(f"{x:.7g}" for x in row) + "\n" for row in train_by_batches(share, w, momentum, more))
