"""trl_runs.py - functions shared by the scripts that create fixtures with TRL (tests/make_*_fixtures.py; a development tool: needs torch, transformers,
trl). What they write is a list of runs, read by tests/like_trl.py: name, start (a model's directory below tests/data), keys (the settings of dtrain that are
the same), metrics and, a list for each step, TRL's log (null: missing, or NaN), and moved: the change of each tensor.
"""
import json
import math
import pathlib

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerFast

DATA = pathlib.Path(__file__).parent / "data"
torch.set_num_threads(1)


def tokenizer_of(symbols, **options):
    """Of a list of bytes, a token each, then <eos> and <pad>; bytes as GPT-2's pre-tokenizer spells them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    spelled = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    n = len(symbols)
    t = Tokenizer(models.BPE({spelled[b]: i for i, b in enumerate(symbols)} | {"<eos>": n, "<pad>": n + 1}, []))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<pad>", **options)


def bytes_tokenizer(**options):
    """dtrain's `bytes`."""
    return tokenizer_of(list(range(256)), **options)


def in_order(trainer):
    """Its data in file order, as with data.shuffle = false."""
    class InOrder(trainer):
        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(self.train_dataset)
    return InOrder


def digits(x, n=7):
    return None if x is None or math.isnan(x) else float(f"{float(x):.{n}g}")


def moved(model, start):
    """Of each tensor the length of its change, and sums of its change times cos(i) and cos(3 i + 1)."""
    where = {}
    for name, w in model.state_dict().items():
        d = (w.double() - start[name].double()).flatten()
        if name.endswith("attn.c_attn.bias"):  # no loss depends on that of the keys, whose gradients are roundings that Adam makes steps of
            d[d.numel() // 3 : 2 * d.numel() // 3] = 0
        i = torch.arange(d.numel(), dtype=torch.float64)
        where[name] = [digits(x, 5) for x in (d.norm().item(), (d * torch.cos(i)).sum().item(), (d * torch.cos(3 * i + 1)).sum().item())]
    return where


def adamw(models, lr):
    """One optimizer for all; norms and biases do not decay."""
    named = [(n, p) for m in models for n, p in m.named_parameters()]
    decays = lambda name: not name.endswith("bias") and "norm" not in name
    return torch.optim.AdamW([{"params": [p for n, p in named if decays(n)], "weight_decay": 0.1},
                              {"params": [p for n, p in named if not decays(n)], "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.999), eps=1e-8)


def train(trainer, left_out=()):
    """Train; its metrics of each step, and where its tensors went."""
    model = trainer.model
    start = {k: v.clone() for k, v in model.state_dict().items()}
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == trainer.args.max_steps
    metrics = [k for k in rows[0] if k not in {"epoch", "step", "step_time", *left_out}]
    steps = [[digits(row.get(k)) for k in metrics] for row in rows]
    return {"metrics": metrics, "steps": steps, "moved": moved(model, start)}


def write(path, runs):
    path.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
