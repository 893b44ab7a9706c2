#!/usr/bin/env python3
"""make_kto_fixtures.py - tests/data/kto: answers with labels, and the results of TRL's KTOTrainer for them with each loss.

    python3 tests/make_kto_fixtures.py        (a development tool: needs torch, transformers, trl; after make_dpo_fixtures.py)
    python3 tests/make_kto_fixtures.py bco    (only the runs of BCO, which replace those of trl.json)

pairs.jsonl  the answers of tests/data/rm/pairs.jsonl, each with a label, as bytes for the model of tests/data/dpo
more.jsonl   likewise of more.jsonl, as letters for models of tests/data/hf
trl.json     runs (tests/trl_runs.py) of ten steps. The rank has the whole batch, so that TRL's estimate of kl is that of a step. TRL 1.16 has no
             BCOTrainer: runs of BCO are plain loops with the loss and the running mean of that of TRL 1.0 (trl/experimental/bco).
"""
import json
import sys
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import KTOConfig, KTOTrainer

import trl_runs

STEPS, LR = 10, 1e-2
OWN = "dpo/start"
RUNS = [  # loss_type, settings of TRL, keys of dtrain, start, data
    ("kto", {}, "", OWN, "pairs"),
    ("apo_zero_unpaired", {}, "", OWN, "pairs"),
    ("kto", {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.4},
     "kto.beta=0.5 kto.desirable_weight=1.5 kto.undesirable_weight=0.4", OWN, "pairs"),
    ("kto", {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6}, "kto.sync_reference_steps=2", OWN, "pairs"),
    # an incomplete last step in each epoch, schedules, other families, texts that are cut
    ("kto", {"lr_scheduler_type": "linear", "warmup_steps": 3, "adam_beta2": 0.95, "max_grad_norm": 0.3, "beta": 1.0},
     "scheduler.type=linear scheduler.warmup_steps=3 optimizer.betas=0.9,0.95 optimizer.max_grad_norm=0.3 kto.beta=1", "hf/llama_linear", "more"),
    ("kto", {"lr_scheduler_type": "cosine", "beta": 0.3, "undesirable_weight": 1.33}, "scheduler.type=cosine kto.beta=0.3 kto.undesirable_weight=1.33",
     "hf/gpt2", "more"),
    ("apo_zero_unpaired", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "batch.micro_batch_size=2", OWN, "pairs"),
]
here = trl_runs.DATA
out = here / "kto"
out.mkdir(exist_ok=True)
for name in ("pairs", "more"):
    answers = []
    for i, line in enumerate(open(here / "rm" / f"{name}.jsonl")):
        r = json.loads(line)
        sides = [("chosen", True), ("rejected", False)]
        sides = sides[::-1] if i % 3 == 1 else sides[:1] if name == "more" and i % 4 == 2 else sides
        answers += [{"prompt": r["prompt"], "completion": r[side], "label": label} for side, label in sides]
    (out / f"{name}.jsonl").write_text("".join(json.dumps(a) + "\n" for a in answers))
DATA = {"pairs": (trl_runs.bytes_tokenizer(), 64), "more": (trl_runs.tokenizer_of(list(b" abcdefghijklmnopqrstuvwxyz")), 16)}

BCO = [  # beta, learning rates, keys of dtrain, start, data, samples of a step
    (0.1, "constant", "", OWN, "pairs", 4),
    (1.0, "constant", "kto.beta=1", OWN, "pairs", 6),
    (0.5, "linear", "kto.beta=0.5 scheduler.type=linear", "hf/llama_linear", "more", 4),
]
bco_only = sys.argv[1:] == ["bco"]
runs = json.load(open(out / "trl.json"))[: len(RUNS)] if bco_only else []
for loss, settings, keys, start, data in RUNS[len(runs):]:
    tokenizer, max_length = DATA[data]
    rows = Dataset.from_list([json.loads(line) for line in open(out / f"{data}.jsonl")])
    defaults = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0}
    with tempfile.TemporaryDirectory() as work:
        arguments = KTOConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, max_length=max_length,
                              use_cpu=True, save_strategy="no", gradient_checkpointing=False, loss_type=loss, **(defaults | settings))
        model, reference = (AutoModelForCausalLM.from_pretrained(here / start, dtype=torch.float32) for _ in range(2))
        trainer = trl_runs.in_order(KTOTrainer)(model=model, ref_model=reference, args=arguments, train_dataset=rows, processing_class=tokenizer)
        # of micro-batches TRL has the mean of their means
        left_out = ({"entropy"} | {f"{what}/{side}" for what in ("logits", "logps", "rewards") for side in ("chosen", "rejected", "margins")}
                    if arguments.gradient_accumulation_steps > 1 else ())
        name = f"{len(runs) + 1} {loss}"
        runs.append({"name": name, "keys": f"kto.loss_type={loss} {keys}".rstrip(), "start": start, "data": data} | trl_runs.train(trainer, left_out))
    kl = runs[-1]["metrics"].index("kl")
    print(name, keys, [(row[0], row[kl]) for row in runs[-1]["steps"]])


def sum_of(model, ids, n_prompt):
    logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, n_prompt - 1:-1].float(), -1)
    return logp.gather(-1, torch.tensor(ids[n_prompt:])[:, None]).sum()


def train_bco(beta, schedule, start, data, batch):
    tokenizer, max_length = DATA[data]
    answers = [json.loads(line) for line in open(out / f"{data}.jsonl")]
    policy, reference = (AutoModelForCausalLM.from_pretrained(here / start, dtype=torch.float32).eval() for _ in range(2))
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    optimizer = trl_runs.adamw([policy], LR)
    mean, count, at, rows = 0.0, 1e-24, 0, []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LR * (1 - step / STEPS if schedule == "linear" else 1)
        samples = answers[at:at + batch]
        at = at + batch if at + batch < len(answers) else 0
        rewards, logps = [], []
        for r in samples:
            prompt = tokenizer(r["prompt"])["input_ids"]
            ids = (prompt + tokenizer(r["completion"])["input_ids"] + [tokenizer.eos_token_id])[:max_length]
            logps.append(sum_of(policy, ids, len(prompt)))
            with torch.no_grad():
                of_reference = sum_of(reference, ids, len(prompt))
            rewards.append(beta * (logps[-1] - of_reference))
        x = torch.stack(rewards)
        mean += (x.mean().item() - mean) * len(x) / (count + len(x))
        count += len(x)
        sign = torch.tensor([1.0 if r["label"] else -1.0 for r in samples])
        loss = -torch.nn.functional.logsigmoid(sign * (x - mean)).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item()
        optimizer.step()
        of = lambda values, label: [v.item() for v, r in zip(values, samples) if r["label"] == label]
        average = lambda values: sum(values) / len(values) if values else 0.0
        good, bad = of(x, True), of(x, False)
        rows.append([loss.item(), norm, mean, average(good), average(bad), average(of(logps, True)), average(of(logps, False))])
    names = ["loss", "grad_norm", "delta", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"]
    return {"metrics": names, "steps": [[trl_runs.digits(v) for v in row] for row in rows], "moved": trl_runs.moved(policy, before)}


for beta, schedule, keys, start, data, batch in BCO:
    name = f"{len(runs) + 1} bco"
    keys = f"kto.loss_type=bco batch.train_batch_size={batch} {keys}".rstrip()
    runs.append({"name": name, "keys": keys, "start": start, "data": data} | train_bco(beta, schedule, start, data, batch))
    print(name, keys, [(row[0], row[2]) for row in runs[-1]["steps"]])
trl_runs.write(out / "trl.json", runs)
