#!/usr/bin/env python3
"""make_dpo_fixtures.py - tests/data/dpo: a tiny language model of transformers, and what TRL's DPOTrainer makes of it with each loss.

    python3 tests/make_dpo_fixtures.py        (a development tool: needs torch, transformers, trl)

The pairs are those of tests/data/rm/pairs.jsonl, as bytes with the end of text (256) behind each answer.
start/     LlamaForCausalLM
trl.txt    a line "LOSS KEYS" names a run and the settings of dtrain that are the same; then a line a step: loss, gradient norm, rewards of
           chosen and rejected answers, accuracy, margin, log-probabilities of chosen and rejected answers, mean logits of both, accuracy of
           tokens, entropy
judge/     LlamaForSequenceClassification, a safety model
safe.txt   the same for Safe-MM-DPO, by plain loops: a line a step with the numbers of dtrain's metrics whose names the first line has
batch.txt  likewise, for one beta for all pairs of a step (beta-DPO)
"""
import json
import math
import pathlib
import shutil
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

STEPS, LR = 6, 1e-2
RUNS = [
    ("sigmoid", {}, ""),
    ("robust", {"label_smoothing": 0.1}, "dpo.label_smoothing=0.1"),
    ("hinge", {}, ""),
    ("ipo", {}, ""),
    ("sigmoid_norm", {}, ""),
    ("exo_pair", {"label_smoothing": 0.01}, "dpo.label_smoothing=0.01"),
    ("nca_pair", {}, ""),
    ("bco_pair", {}, ""),
    ("sppo_hard", {}, ""),
    ("apo_zero", {}, ""),
    ("apo_down", {}, ""),
    ("discopop", {}, ""),
    ("sft", {}, ""),
    ("sigmoid,bco_pair,sft", {"loss_weights": [0.8, 0.2, 1.0]}, "dpo.loss_weights=0.8,0.2,1"),
    ("sigmoid", {"f_divergence_type": "js_divergence"}, "dpo.f_divergence=js_divergence"),
    ("sigmoid", {"f_divergence_type": "forward_kl"}, "dpo.f_divergence=forward_kl"),
    ("hinge", {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
     "dpo.f_divergence=alpha_divergence dpo.f_alpha_divergence_coef=0.7"),
    ("ipo", {"f_divergence_type": "js_divergence"}, "dpo.f_divergence=js_divergence"),
    ("sigmoid", {"ld_alpha": 0.4}, "dpo.ld_alpha=0.4"),
    ("aot", {"label_smoothing": 0.1}, "dpo.label_smoothing=0.1"),
    ("aot_unpaired", {}, ""),
    ("sigmoid,aot_unpaired", {"loss_weights": [1.0, 0.5]}, "dpo.loss_weights=1,0.5"),
    ("sigmoid", {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6}, "dpo.sync_reference_steps=2"),
    ("sigmoid", {"use_weighting": True}, "dpo.use_wpo=true"),
    ("sigmoid_norm,ipo", {"use_weighting": True, "loss_weights": [0.5, 1.0]}, "dpo.use_wpo=true dpo.loss_weights=0.5,1"),
]
METRICS = ["loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected",
           "logits/chosen", "logits/rejected", "mean_token_accuracy", "entropy"]
here = pathlib.Path(__file__).parent / "data"
out = here / "dpo"
shutil.rmtree(out, ignore_errors=True)
out.mkdir()
torch.manual_seed(6)
torch.set_num_threads(1)
config = LlamaConfig(vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                     max_position_embeddings=64, initializer_range=0.2, pad_token_id=257, bos_token_id=256, eos_token_id=256)
LlamaForCausalLM(config).save_pretrained(out / "start")
records = [json.loads(line) for line in open(here / "rm" / "pairs.jsonl")]

# Bytes as GPT-2's pre-tokenizer spells them.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [b for b in range(256) if b not in plain]
spelled = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
bytes_only = Tokenizer(models.BPE({spelled[b]: b for b in range(256)} | {"<eos>": 256, "<pad>": 257}, []))
bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
bytes_only.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<eos>", pad_token="<pad>")
assert tokenizer("so is")["input_ids"] == list(b"so is")


class InOrder(DPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


with open(out / "trl.txt", "w") as f, tempfile.TemporaryDirectory() as work:
    for loss, settings, keys in RUNS:
        data = Dataset.from_list([{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in records])
        arguments = DPOConfig(output_dir=work, per_device_train_batch_size=4, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant",
                              weight_decay=0.1, max_grad_norm=1.0, logging_steps=1, report_to=[], bf16=False, max_length=64, use_cpu=True,
                              save_strategy="no", gradient_checkpointing=False, loss_type=loss.split(","), **settings)
        model = LlamaForCausalLM.from_pretrained(out / "start", dtype=torch.float32)
        reference = LlamaForCausalLM.from_pretrained(out / "start", dtype=torch.float32)
        trainer = InOrder(model=model, ref_model=reference, args=arguments, train_dataset=data, processing_class=tokenizer)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        assert len(rows) == STEPS
        f.write(f"run {loss} {keys}".rstrip() + "\n")
        f.writelines(" ".join(f"{float(row[name]):.7g}" for name in METRICS) + "\n" for row in rows)

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
    norms = [p for n, p in policy.named_parameters() if "norm" in n]
    others = [p for n, p in policy.named_parameters() if "norm" not in n]
    optimizer = torch.optim.AdamW([{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.999), eps=1e-8)
    log_lambda, ema = 0.0, None
    for step in range(STEPS):
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
SEED, FILTER, MASK = 1234, 8, 2**64 - 1


def mix(x):
    """splitmix64's finaliser."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def drawn(gaps, mean, deviation, n_kept, first):
    """Numbers of pairs without replacement, by Gaussian weights: the greatest logarithms of weights with Gumbel noise."""
    def key(i):
        u = ((mix((mix(mix(SEED) ^ FILTER << 32) + first + i) & MASK) >> 12) + 0.5) * 2.0**-52
        off = (gaps[i] - mean) / deviation if deviation > 0 else 0
        return -off * off / 2 - math.log(-math.log(u))
    return sorted(range(len(gaps)), key=key, reverse=True)[:n_kept]


def train_by_batches(share, w, momentum, more):
    policy, reference = (LlamaForCausalLM.from_pretrained(out / "start", dtype=torch.float32).eval() for _ in range(2))
    norms = [p for n, p in policy.named_parameters() if "norm" in n]
    others = [p for n, p in policy.named_parameters() if "norm" not in n]
    optimizer = torch.optim.AdamW([{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.999), eps=1e-8)
    mean = deviation = None
    for step in range(STEPS):
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
