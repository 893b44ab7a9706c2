"""Updates of torch.optim.Muon: the expectations of mpi_states.c.

    python tests/make_muon_fixtures.py tests/data/muon.json

needs torch; nothing else in the tree does. Starts and gradients are a formula that the test repeats.
"""
import json
import sys

import torch
from fixtures import mix64

STEPS, STRIDE = 3, 7  # every seventh element is in the file
MATRICES = {"q": (2, (64, 100)), "k": (3, (16, 100)), "v": (4, (51, 101)), "o": (5, (100, 100))}  # index of the tensor, shape


def numbers(tensor, step, shape):
    values = []
    for i in range(shape[0] * shape[1]):
        h = mix64(i + 100000 * tensor + 10000000 * step)
        values.append((h % 4096 / 2048 - 1) * 2.0 ** -((h >> 40) % 8))
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def run(tensor, shape):
    p = torch.nn.Parameter(numbers(tensor, 0, shape))
    optimizer = torch.optim.Muon([p], lr=1e-2, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=5, adjust_lr_fn="match_rms_adamw")
    for step in range(1, STEPS + 1):
        p.grad = 0.25 * numbers(tensor, step, shape)
        optimizer.step()
    buffer = optimizer.state[p]["momentum_buffer"]
    return {k: [float(f"{x:.7g}") for x in v.detach().flatten()[::STRIDE].tolist()] for k, v in dict(param=p, momentum_buffer=buffer).items()}


def main():
    with open(sys.argv[1], "w") as out:
        json.dump({name: run(*of) for name, of in MATRICES.items()}, out, separators=(",", ":"))
        out.write("\n")


main()
