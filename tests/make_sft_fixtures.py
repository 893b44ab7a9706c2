#!/usr/bin/env python3
"""make_sft_fixtures.py - tests/data/sft: prompts with completions, and the results of TRL's SFTTrainer for them with its options.

    python3 tests/make_sft_fixtures.py        (a development tool: needs torch, transformers, trl; after make_dpo_fixtures.py)

pairs.jsonl  the chosen answers of tests/data/rm/pairs.jsonl, as bytes for the model of tests/data/dpo
more.jsonl   likewise of more.jsonl, as letters for models of tests/data/hf
trl.json     runs (tests/trl_runs.py) of ten steps. With NEFTune the hook of transformers gets dtrain's random numbers instead of PyTorch's.
"""
import json
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

import fixtures
import trl_runs

STEPS, LR, SEED, BATCH = 10, 1e-2, 42, 4
OWN = "dpo/start"
EACH = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": BATCH}
RUNS = [  # settings of TRL, keys of dtrain, start, data
    ({"loss_type": "dft"}, "sft.loss_type=dft", OWN, "pairs"),
    ({"completion_only_loss": False}, "sft.train_on_inputs=true", OWN, "pairs"),
    ({"neftune_noise_alpha": 5.0, **EACH}, "model.neftune_noise_alpha=5", OWN, "pairs"),
    ({"loss_type": "dft", "lr_scheduler_type": "linear", "warmup_steps": 3, "max_grad_norm": 0.3, **EACH},
     "sft.loss_type=dft scheduler.type=linear scheduler.warmup_steps=3 optimizer.max_grad_norm=0.3", "hf/llama_linear", "more"),
    ({"completion_only_loss": False, "loss_type": "dft"}, "sft.train_on_inputs=true sft.loss_type=dft", "hf/olmo2", "more"),
    ({"neftune_noise_alpha": 15.0, "completion_only_loss": False, **EACH}, "model.neftune_noise_alpha=15 sft.train_on_inputs=true", "hf/qwen2", "more"),
    # embeddings are multiplied after the noise (Granite), before it (Gemma)
    ({"neftune_noise_alpha": 1.0, **EACH}, "model.neftune_noise_alpha=1", "hf/granite", "more"),
    ({"neftune_noise_alpha": 10.0, **EACH}, "model.neftune_noise_alpha=10", "hf/gemma2", "more"),
    ({"packing": True, "max_length": 48, "per_device_train_batch_size": 2, "loss_type": "dft"},
     "data.packing=bfd data.seq_len=48 batch.train_batch_size=2 sft.loss_type=dft", OWN, "pairs"),
]
here = trl_runs.DATA
out = here / "sft"
out.mkdir(exist_ok=True)
for name in ("pairs", "more"):
    records = [json.loads(line) for line in open(here / "rm" / f"{name}.jsonl")][:12]  # whole steps
    (out / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": r["prompt"], "completion": r["chosen"]}) + "\n" for r in records))
DATA = {"pairs": (trl_runs.bytes_tokenizer(), 64), "more": (trl_runs.tokenizer_of(list(b" abcdefghijklmnopqrstuvwxyz")), 16)}

class Noise:
    """uniform_ of tensors [1, tokens, width], called once for each sample of the steps in order."""
    def __init__(self, n_samples):
        self.n, self.calls = n_samples, 0

    def __call__(self, x, low, high):
        step, sample = self.calls // BATCH, self.calls % self.n
        self.calls += 1
        u = fixtures.noise(SEED, step, sample, *x.shape[1:])
        return x.copy_((high * torch.tensor(u, dtype=torch.float64)).reshape(x.shape))


runs = []
for settings, keys, start, data in RUNS:
    tokenizer, max_length = DATA[data]
    rows = Dataset.from_list([json.loads(line) for line in open(out / f"{data}.jsonl")])
    defaults = {"per_device_train_batch_size": BATCH, "lr_scheduler_type": "constant", "weight_decay": 0.1, "max_grad_norm": 1.0, "max_length": max_length}
    uniform = torch.Tensor.uniform_
    with tempfile.TemporaryDirectory() as work:
        arguments = SFTConfig(output_dir=work, max_steps=STEPS, learning_rate=LR, logging_steps=1, report_to=[], bf16=False, use_cpu=True,
                              save_strategy="no", gradient_checkpointing=False, **(defaults | settings))
        model = AutoModelForCausalLM.from_pretrained(here / start, dtype=torch.float32)
        trainer = trl_runs.in_order(SFTTrainer)(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
        noise = Noise(len(rows))
        if arguments.neftune_noise_alpha:
            torch.Tensor.uniform_ = lambda x, low, high: noise(x, low, high)
        left_out = {"num_tokens"} | ({"entropy", "mean_token_accuracy"} if arguments.gradient_accumulation_steps > 1 else set())
        name = f"{len(runs) + 1} sft"
        run = trl_runs.train(trainer, left_out)
        torch.Tensor.uniform_ = uniform
        assert not arguments.neftune_noise_alpha or noise.calls == STEPS * BATCH, noise.calls
        run["metrics"] = ["accuracy" if k == "mean_token_accuracy" else k for k in run["metrics"]]
        runs.append({"name": name, "keys": keys, "start": start, "data": data} | run)
    print(name, keys, [row[0] for row in runs[-1]["steps"]])
trl_runs.write(out / "trl.json", runs)
