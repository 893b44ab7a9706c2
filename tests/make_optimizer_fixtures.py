"""Results of torch.optim in double precision: the expectations of mpi_optim.c.

    python tests/make_optimizer_fixtures.py tests/data/optimizers.json

needs torch; nothing else in the tree does. Tensors and gradients are a formula that the test repeats, so the file holds configurations and
results only: for each case the [optimizer] and [scheduler] sections as text, and every tensor with its states after STEPS updates. Learning
rates of groups, weight decay of matrices alone, clipping by the global norm and the schedule are made of PyTorch's own parts.
"""
import json
import math
import sys

import torch
from fixtures import mix64

STEPS, TOTAL, WARMUP = 12, 20, 3
TENSORS = [  # name, shape, decay
    ("model.embed_tokens.weight", (9, 4), True),
    ("model.layers.0.input_layernorm.weight", (4,), False),
    ("model.layers.0.self_attn.q_proj.weight", (5, 4), True),
    ("model.layers.0.self_attn.k_proj.weight", (5, 4), True),
    ("lm_head.weight", (9, 4), True),
]
CASES = [
    dict(type="adamw", lr=1e-2, lr_groups={"q_proj": 2e-2, "lm_head": 1e-3}, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, max_grad_norm=1),
    dict(type="adamw", lr=1e-2, lr_groups={}, betas=(0.9, 0.999), eps=1e-6, weight_decay=0, max_grad_norm=0),
    dict(type="adam", lr=1e-2, lr_groups={"q_proj": 2e-2, "lm_head": 1e-3}, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, max_grad_norm=1),
    dict(type="adam", lr=3e-3, lr_groups={}, betas=(0.8, 0.999), eps=1e-6, weight_decay=0, max_grad_norm=0),
    dict(type="sgd", lr=1e-2, lr_groups={"q_proj": 2e-2, "lm_head": 0}, momentum=0.9, weight_decay=0.1, max_grad_norm=1),
    dict(type="sgd", lr=1e-2, lr_groups={}, momentum=0.5, weight_decay=0, max_grad_norm=0),
    dict(type="sgd", lr=1e-2, lr_groups={"model.layers.*": 5e-2}, momentum=0, weight_decay=0.05, max_grad_norm=2),
]


def numbers(tensor, step, shape):
    """Multiples of 2^-11 in [-1, 1): step 0 is the start, the others are gradients."""
    n = math.prod(shape)
    return torch.tensor([mix64(i + 1000 * tensor + 100000 * step) % 4096 / 2048 - 1 for i in range(n)], dtype=torch.float64).reshape(shape)


def group_of(name, lr_groups):
    for pattern, lr in lr_groups.items():
        if pattern.removesuffix(".*") in name:
            return lr
    return None


def optimizer_of(case, params):
    groups = []
    for (name, _, decay), p in zip(TENSORS, params):
        lr = group_of(name, case["lr_groups"])
        groups.append(dict(params=[p], lr=case["lr"] if lr is None else lr, weight_decay=case["weight_decay"] if decay else 0.0))
    if case["type"] == "sgd":
        return torch.optim.SGD(groups, lr=case["lr"], momentum=case["momentum"])
    kind = torch.optim.AdamW if case["type"] == "adamw" else torch.optim.Adam
    return kind(groups, lr=case["lr"], betas=case["betas"], eps=case["eps"])


def factor(step):
    """cosine to zero after a linear warm-up"""
    return step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


def config(case):
    lines = ["[optimizer]"]
    for key, value in case.items():
        if key == "lr_groups":
            value = ", ".join(f"{p}:{lr:g}" for p, lr in value.items())
        if key == "betas":
            value = "%g, %g" % value
        lines.append(f"{key} = {value}")
    return "\n".join(lines + ["[scheduler]", "type = cosine", f"warmup_steps = {WARMUP}", ""])


def run(case):
    params = [torch.nn.Parameter(numbers(t, 0, shape)) for t, (_, shape, _) in enumerate(TENSORS)]
    optimizer = optimizer_of(case, params)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(1, STEPS + 1):
        for t, p in enumerate(params):
            p.grad = numbers(t, step, p.shape)
        if case["max_grad_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(params, case["max_grad_norm"])
        optimizer.step()
        schedule.step()
    tensors = {}
    for (name, _, _), p in zip(TENSORS, params):
        values = dict(param=p.detach())
        values.update({k: v for k, v in optimizer.state[p].items() if k in ("exp_avg", "exp_avg_sq", "momentum_buffer") and v is not None})
        tensors[name] = {k: [float(f"{x:.12g}") for x in v.flatten().tolist()] for k, v in values.items()}
    return dict(config=config(case), tensors=tensors)


def main():
    cases = [run(case) for case in CASES]
    with open(sys.argv[1], "w") as out:
        out.write("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]\n")


main()
