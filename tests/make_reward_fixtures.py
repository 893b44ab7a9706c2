#!/usr/bin/env python3
"""make_reward_fixtures.py - tests/data/rm: tiny classifiers of transformers, pairs of texts, and what TRL's RewardTrainer makes of them.

    python3 tests/make_reward_fixtures.py        (a development tool: needs torch, transformers, trl)

start/, gpt2/, qwen2/   classifiers with one label of three families; those of start with bytes for tokens, the others with letters
letters/                the tokenizer of a space and small letters
pairs.jsonl             12 pairs: prompt, chosen, rejected, margin; read by dtrain-data with the tokenizer `bytes`, whose end-of-text (256) closes each text
more.jsonl              15 pairs of small letters without margins, of which one is too long for 28 tokens
trl.json                runs (tests/trl_runs.py) of ten steps
rewards.txt             of each chosen answer, by start, a line each
ranked.jsonl            rankings with ties, and a pair that is one
ranked.txt              training on all of their pairs, by plain loops: a line a step: loss, gradient norm, accuracy, margin, min, mean and max reward
"""
import json
import shutil
import tempfile

import numpy as np
import torch
from datasets import Dataset
from transformers import (AutoModelForSequenceClassification, GPT2Config, GPT2ForSequenceClassification, LlamaConfig, LlamaForSequenceClassification, Qwen2Config,
                          Qwen2ForSequenceClassification)
from trl import RewardConfig, RewardTrainer

import trl_runs

STEPS, PAIRS, LR = 10, 12, 1e-2
out = trl_runs.DATA / "rm"
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)
torch.manual_seed(5)
config = LlamaConfig(vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                     max_position_embeddings=64, initializer_range=0.2, num_labels=1, pad_token_id=257, bos_token_id=256, eos_token_id=256)
LlamaForSequenceClassification(config).save_pretrained(out / "start")
rng = np.random.default_rng(2)
words = "it is not so we may go to see all of them by day".split()


def text(n):
    return " ".join(rng.choice(words, n))


records = [{"prompt": text(rng.integers(1, 4)) + " ", "chosen": text(rng.integers(1, 6)), "rejected": text(rng.integers(1, 6)),
            "margin": round(float(rng.random()), 3)} for _ in range(PAIRS)]
(out / "pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def ids(record, side):
    return list((record["prompt"] + record[side]).encode()) + [256]


with torch.no_grad():
    start = LlamaForSequenceClassification.from_pretrained(out / "start", dtype=torch.float32).eval()
    rewards = [start(torch.tensor([ids(r, "chosen")])).logits.item() for r in records]
(out / "rewards.txt").write_text("".join(f"{reward:.7g}\n" for reward in rewards))

# ---- rankings -----------------------------------------------------------------------------------------------------------------------------------
W_TIE, BATCH = 0.5, 4
rankings = [{"prompt": text(2) + " ", "responses": [text(2), text(3), text(1)]},
            {"prompt": text(1) + " ", "responses": [text(1), text(4), text(2), text(3)], "ranks": [2, 1, 2, 3]},
            {"prompt": text(3) + " ", "chosen": text(2), "rejected": text(2), "tie": True},
            {"prompt": text(2) + " ", "answers": [text(2), text(1)], "scores": [-1, 0.5]}]
(out / "ranked.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rankings))


def pairs_of(r):
    """Prompt, better, worse, tie."""
    if "chosen" in r:
        return [(r["prompt"], r["chosen"], r["rejected"], r["tie"])]
    answers = r.get("responses") or r["answers"]
    value = [-x for x in r["ranks"]] if "ranks" in r else r.get("scores") or [-i for i in range(len(answers))]
    return [(r["prompt"], *((a, b) if value[i] >= value[j] else (b, a)), value[i] == value[j])
            for i, a in enumerate(answers) for j, b in enumerate(answers) if i < j]


pairs = [p for r in rankings for p in pairs_of(r)]
model = LlamaForSequenceClassification.from_pretrained(out / "start", dtype=torch.float32).eval()
optimizer = trl_runs.adamw([model], LR)
with open(out / "ranked.txt", "w") as f:
    at = 0
    for step in range(6):
        here = pairs[at:at + BATCH]  # the last step of an epoch has what is left
        at = (at + BATCH) if at + BATCH < len(pairs) else 0
        total, told, rewards = 0, [], []
        for prompt, better, worse, tie in here:
            r = [model(torch.tensor([list((prompt + t).encode()) + [256]])).logits[0, 0] for t in (better, worse)]
            d = r[0] - r[1]
            total = total + (W_TIE * d * d if tie else -torch.nn.functional.logsigmoid(d)) / len(here)
            told += [] if tie else [d.item()]
            rewards += [x.item() for x in r]
        optimizer.zero_grad()
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        f.write(" ".join(f"{x:.7g}" for x in [total.item(), norm, sum(d > 0 for d in told) / len(told), sum(told) / len(told), min(rewards),
                                              sum(rewards) / len(rewards), max(rewards)]) + "\n")

# ---- TRL ----------------------------------------------------------------------------------------------------------------------------------------
LETTERS = b" abcdefghijklmnopqrstuvwxyz"
tokenizers = {"bytes": trl_runs.bytes_tokenizer(), "letters": trl_runs.tokenizer_of(list(LETTERS))}
(out / "letters").mkdir()
tokenizers["letters"].backend_tokenizer.save(str(out / "letters" / "tokenizer.json"))
more = [{"prompt": text(rng.integers(1, 3)) + " ", "chosen": text(rng.integers(1, 4)), "rejected": text(rng.integers(1, 4))} for _ in range(15)]
more[6]["rejected"] = text(12)
(out / "more.jsonl").write_text("".join(json.dumps(r) + "\n" for r in more))
small = {"vocab_size": 30, "num_labels": 1, "pad_token_id": 28, "initializer_range": 0.2}
GPT2ForSequenceClassification(GPT2Config(n_embd=12, n_layer=2, n_head=3, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **small)).half() \
    .save_pretrained(out / "gpt2")
qwen2 = Qwen2ForSequenceClassification(Qwen2Config(hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                                                   max_position_embeddings=32, tie_word_embeddings=True, **small))
for name, p in qwen2.named_parameters():
    if name.endswith("bias"):
        p.data.normal_(0, 0.2)
qwen2.half().save_pretrained(out / "qwen2")
RUNS = [  # name, start, data, settings of TRL, keys of dtrain
    ("accumulation", "start", "pairs", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "center_rewards_coefficient": 0.01},
     "rm.center_rewards_coefficient=0.01"),
    ("no margin", "start", "unequal", {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.3, "adam_beta2": 0.95, "weight_decay": 0.0},
     "scheduler.type=cosine scheduler.warmup_steps=3 optimizer.max_grad_norm=0.3 optimizer.betas=0.9,0.95 optimizer.weight_decay=0"),
    ("gpt2", "gpt2", "more", {"lr_scheduler_type": "linear", "warmup_steps": 0.2, "max_length": 28, "center_rewards_coefficient": 0.05},
     "scheduler.type=linear scheduler.warmup_ratio=0.2 rm.center_rewards_coefficient=0.05"),  # without, no loss depends on the bias of the last norm
    ("qwen2", "qwen2", "more", {"lr_scheduler_type": "cosine", "warmup_steps": 2, "max_length": 28, "center_rewards_coefficient": 0.1},
     "scheduler.type=cosine scheduler.warmup_steps=2 rm.center_rewards_coefficient=0.1"),
]


def data_of(name):
    """The token ids of both sides; `unequal` is `pairs` but for the last two, and without margins."""
    of_letters = name == "more"
    some = {"pairs": records, "unequal": records[:10], "more": more}[name]
    encode = tokenizers["letters" if of_letters else "bytes"]
    rows = [{f"{side}_ids": encode(r["prompt"] + r[side])["input_ids"] + [encode.eos_token_id] for side in ("chosen", "rejected")} for r in some]
    return encode, Dataset.from_list([row | ({"margin": r["margin"]} if name == "pairs" else {}) for row, r in zip(rows, some)])


runs = []
for name, start, data, settings, keys in RUNS:
    tokenizer, rows = data_of(data)
    defaults = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0, "max_length": 64}
    with tempfile.TemporaryDirectory() as work:
        arguments = RewardConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, use_cpu=True,
                                 save_strategy="no", gradient_checkpointing=False, **(defaults | settings))
        model = AutoModelForSequenceClassification.from_pretrained(out / start, dtype=torch.float32)
        trainer = trl_runs.in_order(RewardTrainer)(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
        # of micro-batches TRL has the mean of their least rewards and of their greatest
        left_out = ["min_reward", "max_reward"] if arguments.gradient_accumulation_steps > 1 else []
        runs.append({"name": name, "keys": keys, "start": f"rm/{start}", "data": data} | trl_runs.train(trainer, left_out))
    print(name, [row[0] for row in runs[-1]["steps"]])
trl_runs.write(out / "trl.json", runs)
