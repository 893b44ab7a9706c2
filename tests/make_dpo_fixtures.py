#!/usr/bin/env python3
"""make_dpo_fixtures.py - tests/data/dpo: a tiny language model of transformers, and what TRL's DPOTrainer makes of it with each loss.

    python3 tests/make_dpo_fixtures.py        (a development tool: needs torch, transformers, trl)

The pairs are those of tests/data/rm/pairs.jsonl, as bytes with the end of text (256) behind each answer.
start/     LlamaForCausalLM
trl.txt    a line "LOSS KEYS" names a run and the settings of dtrain that are the same; then a line a step: loss, gradient norm, rewards of
           chosen and rejected answers, accuracy, margin, log-probabilities of chosen and rejected answers
"""
import json
import pathlib
import shutil
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
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
]
METRICS = ["loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
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
