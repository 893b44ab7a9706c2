#!/usr/bin/env python3
"""make_reward_fixtures.py - tests/data/rm: a tiny classifier of transformers, pairs of texts, and what TRL's RewardTrainer makes of them.

    python3 tests/make_reward_fixtures.py        (a development tool: needs torch, transformers, trl)

start/          LlamaForSequenceClassification with one label
pairs.jsonl     prompt, chosen, rejected, margin; read by dtrain-data with the tokenizer `bytes`, whose end-of-text (256) closes each text
rewards.txt     of each chosen answer, by start, a line each
trl.txt         a line a step: loss, gradient norm, accuracy, margin, min, mean and max reward
ranked.jsonl    rankings with ties, and a pair that is one
ranked.txt      the same numbers of training on all of their pairs, by plain loops
"""
import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models
from trl import RewardConfig, RewardTrainer

STEPS, PAIRS, LR = 10, 12, 1e-2
out = pathlib.Path(__file__).parent / "data" / "rm"
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)
torch.manual_seed(5)
torch.set_num_threads(1)
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


class InOrder(RewardTrainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


vocabulary = {f"<{i}>": i for i in range(258)}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<0>")), pad_token="<257>", eos_token="<256>")
data = Dataset.from_list([{"chosen_ids": ids(r, "chosen"), "rejected_ids": ids(r, "rejected"), "margin": r["margin"]} for r in records])
with tempfile.TemporaryDirectory() as work:
    arguments = RewardConfig(output_dir=work, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS, learning_rate=LR,
                             lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0, logging_steps=1, report_to=[], bf16=False,
                             center_rewards_coefficient=0.01, max_length=64, use_cpu=True, save_strategy="no", gradient_checkpointing=False)
    model = LlamaForSequenceClassification.from_pretrained(out / "start", dtype=torch.float32)
    trainer = InOrder(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
rows = [row for row in trainer.state.log_history if "loss" in row]
names = ["loss", "grad_norm", "accuracy", "margin", "min_reward", "mean_reward", "max_reward"]
(out / "trl.txt").write_text("".join(" ".join(f"{float(row[name]):.7g}" for name in names) + "\n" for row in rows))

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
plain = [p for n, p in model.named_parameters() if "norm" in n]
optimizer = torch.optim.AdamW([{"params": [p for n, p in model.named_parameters() if "norm" not in n], "weight_decay": 0.1},
                               {"params": plain, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.999), eps=1e-8)
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
