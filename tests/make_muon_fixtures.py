"""Updates of torch.optim.Muon: the expectations of test_muon.c.

    python tests/make_muon_fixtures.py tests/data/muon.json

needs torch; nothing else in the tree does. Starts and gradients are a formula that the test repeats.
"""
import json
import sys

import torch
from fixtures import mix64

STEPS, STRIDE = 4, 13  # the file has every 13th element
SHAPES = [(48, 20), (20, 48), (32, 32), (1, 40), (40, 1), (9, 7)]
SETTINGS = [("match_rms_adamw", True, 0.95, 5), ("original", True, 0.95, 5), ("original", False, 0.8, 3)]
NO_GRADIENT = (9, 7)  # of this shape all gradients are zero but those of the last step


def numbers(case, step, shape):
    values = []
    for i in range(shape[0] * shape[1]):
        h = mix64(i + 100000 * case + 10000000 * step)
        values.append((h % 4096 / 2048 - 1) * 2.0 ** -((h >> 40) % 8))
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def some(x):
    return [float(f"{v:.7g}") for v in x.detach().flatten()[::STRIDE].tolist()]


def run(case, shape, scale, nesterov, momentum, ns_steps):
    p = torch.nn.Parameter(numbers(case, 0, shape))
    optimizer = torch.optim.Muon([p], lr=1e-2, weight_decay=0.1, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps, adjust_lr_fn=scale)
    params, buffers = [], []
    for step in range(1, STEPS + 1):
        zero = shape == NO_GRADIENT and step < STEPS
        p.grad = torch.zeros(shape) if zero else 0.25 * numbers(case, step, shape)
        optimizer.step()
        params.append(some(p))
        buffers.append(some(optimizer.state[p]["momentum_buffer"]))
    return dict(shape=shape, lr_scale=scale, nesterov=nesterov, momentum=momentum, ns_steps=ns_steps, params=params, buffers=buffers)


def main():
    cases = [(shape, *setting) for setting in SETTINGS for shape in SHAPES]
    with open(sys.argv[1], "w") as out:
        json.dump([run(i, *of) for i, of in enumerate(cases)], out, separators=(",", ":"))
        out.write("\n")


main()
