#!/usr/bin/env python3
"""make_distill_fixtures.py - tests/data/distill: prompts with answers, a teacher, and the results of TRL's GKDTrainer for them.

    python3 tests/make_distill_fixtures.py        (a development tool: needs torch, transformers, trl; after make_kto_fixtures.py)

pairs.jsonl  the answers of tests/data/kto/pairs.jsonl without labels, as bytes for the model of tests/data/dpo
more.jsonl   likewise of more.jsonl, as letters for models of tests/data/hf
teacher/     GPT2LMHeadModel over bytes
trl.json     runs (tests/trl_runs.py) of ten steps. GKDTrainer's temperature is that of sampling; here its loss has it as well, as the loss of
             TRL's DistillationTrainer has.
known/trl.json  likewise, with the teacher's k most probable tokens only and a bucket for the rest, by the functions of TRL's ServerDistillationTrainer
"""
import functools
import json
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.server_distillation import server_distillation_trainer as server

import trl_runs

STEPS, LR = 10, 1e-2
OWN, TEACHER = "dpo/start", "distill/teacher"
RUNS = [  # beta, temperature, settings of TRL, keys of dtrain, start, teacher, data
    (0.5, 1.0, {}, "", OWN, TEACHER, "pairs"),
    (0.0, 1.0, {}, "", OWN, TEACHER, "pairs"),
    (1.0, 1.0, {}, "", OWN, TEACHER, "pairs"),
    (0.1, 2.0, {}, "", OWN, TEACHER, "pairs"),
    (0.9, 0.7, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "batch.micro_batch_size=2", OWN, TEACHER, "pairs"),
    # an incomplete last step in each epoch, schedules, other families, texts that are cut; Gemma 2 caps its logits
    (0.0, 0.5, {"lr_scheduler_type": "linear", "warmup_steps": 3, "adam_beta2": 0.95, "max_grad_norm": 0.3},
     "scheduler.type=linear scheduler.warmup_steps=3 optimizer.betas=0.9,0.95 optimizer.max_grad_norm=0.3", "hf/llama_linear", "hf/gpt2", "more"),
    (0.3, 1.0, {"lr_scheduler_type": "cosine"}, "scheduler.type=cosine", "hf/gpt2", "hf/gemma2", "more"),
    (1.0, 3.0, {}, "", "hf/gemma2", "hf/qwen3", "more"),
]
KNOWN = [  # beta, temperature, k, settings of TRL, keys of dtrain, start, teacher, data
    (0.0, 1.0, 4, {}, "", OWN, TEACHER, "pairs"),
    (0.5, 2.0, 8, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "batch.micro_batch_size=2", OWN, TEACHER, "pairs"),
    (1.0, 1.0, 1, {}, "", OWN, TEACHER, "pairs"),
    (0.2, 0.7, 3, {"lr_scheduler_type": "linear", "warmup_steps": 3}, "scheduler.type=linear scheduler.warmup_steps=3", "hf/llama_linear", "hf/gpt2", "more"),
]
here = trl_runs.DATA
out = here / "distill"
out.mkdir(exist_ok=True)
for name in ("pairs", "more"):
    answers = [json.loads(line) for line in open(here / "kto" / f"{name}.jsonl")]
    (out / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": a["prompt"], "completion": a["completion"]}) + "\n" for a in answers))
torch.manual_seed(5)
teacher = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_positions=64, n_embd=24, n_layer=2, n_head=3, initializer_range=0.3, bos_token_id=256,
                                     eos_token_id=256, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
teacher.save_pretrained(out / "teacher")
DATA = {"pairs": (trl_runs.bytes_tokenizer(), 64), "more": (trl_runs.tokenizer_of(list(b" abcdefghijklmnopqrstuvwxyz")), 16)}


def collate(rows, tokenizer, max_length):
    """Texts cut at max_length, the tokens of answers with their end as labels."""
    texts = [(tokenizer(r["prompt"])["input_ids"], tokenizer(r["completion"])["input_ids"] + [tokenizer.eos_token_id]) for r in rows]
    longest = min(max_length, max(len(p) + len(a) for p, a in texts))
    row = lambda ids, fill: (ids + [fill] * longest)[:longest]
    columns = {"input_ids": [row(p + a, tokenizer.pad_token_id) for p, a in texts], "attention_mask": [row([1] * len(p + a), 0) for p, a in texts],
               "labels": [row([-100] * len(p) + a, -100) for p, a in texts]}
    return {name: torch.tensor(values) for name, values in columns.items()}


def known_loss(student_logits, teacher_logits, labels, beta, num_items_in_batch, temperature, k):
    """The divergence of distributions over k tokens of the teacher and the rest."""
    student, teacher = ((logits / temperature).log_softmax(-1) for logits in (student_logits, teacher_logits))
    teacher, tokens = teacher.topk(k, dim=-1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    student, mask = server._add_tail_bucket(student.gather(-1, tokens), valid)
    teacher, _ = server._add_tail_bucket(teacher, valid)
    return server._jsd_divergence(student, teacher, beta=beta, support_mask=mask)[labels != -100].sum() / num_items_in_batch


def run(number, beta, temperature, k, settings, keys, start, teacher, data):
    """k None: the whole vocabulary."""
    tokenizer, max_length = DATA[data]
    rows = Dataset.from_list([json.loads(line) for line in open(out / f"{data}.jsonl")])
    defaults = {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0}
    with tempfile.TemporaryDirectory() as work:
        arguments = GKDConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, max_length=max_length,
                              use_cpu=True, save_strategy="no", gradient_checkpointing=False, beta=beta, lmbda=0.0, **(defaults | settings))
        student, taught_by = (AutoModelForCausalLM.from_pretrained(here / path, dtype=torch.float32) for path in (start, teacher))
        trainer = trl_runs.in_order(GKDTrainer)(model=student, teacher_model=taught_by, args=arguments, train_dataset=rows, processing_class=tokenizer,
                                                data_collator=functools.partial(collate, tokenizer=tokenizer, max_length=max_length))
        whole = functools.partial(GKDTrainer.generalized_jsd_loss, temperature=temperature)
        trainer.generalized_jsd_loss = functools.partial(known_loss, temperature=temperature, k=k) if k else whole
        name = f"{number} beta {beta:g}" + (f" top {k}" if k else "")
        ours = f"distill.beta={beta:g} distill.temperature={temperature:g} {keys}".rstrip()
        of_teacher = "" if k else f"distill.teacher_path=tests/data/{teacher} "
        made = {"name": name, "keys": of_teacher + ours, "start": start, "data": data} | trl_runs.train(trainer)
    loss = made["metrics"].index("loss")
    print(name, made["keys"], [row[loss] for row in made["steps"]])
    return made


trl_runs.write(out / "trl.json", [run(i, beta, t, None, *rest) for i, (beta, t, *rest) in enumerate(RUNS, 1)])
(out / "known").mkdir(exist_ok=True)
trl_runs.write(out / "known" / "trl.json", [run(i, *of) for i, of in enumerate(KNOWN, 1)])
