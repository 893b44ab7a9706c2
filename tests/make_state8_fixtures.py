"""Updates of bitsandbytes' AdamW8bit on the CPU: the expectations of test_device_optimizer.c.

    python tests/make_state8_fixtures.py tests/data/states8.json

needs torch and bitsandbytes; nothing else in the tree does. Start and gradients are a formula that the test repeats, so the file holds settings
and results only: codes, scales and parameters after STEPS updates, and the two maps, as the bytes of little-endian arrays in hexadecimal.
"""
import json
import sys

import bitsandbytes
import bitsandbytes.backends.cpu.ops as cpu
import torch
from bitsandbytes.functional import create_dynamic_map
from fixtures import mix64

STEPS, SHAPE = 4, (65, 64)
CASES = [dict(lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0), dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)]


def numbers(step):
    """Multiples of powers of two in [-1, 1): step 0 is the start, the others are gradients."""
    values = []
    for i in range(SHAPE[0] * SHAPE[1]):
        h = mix64(i + 10000000 * step)
        values.append((h % 4096 / 2048 - 1) * 2.0 ** -((h >> 40) % 8))
    return torch.tensor(values, dtype=torch.float32).reshape(SHAPE)


def quantise(a, code, absmax_out, out, blocksize):
    """Nearest values, ties to the lower code, as bitsandbytes' GPU and default backends do. Its CPU library looks codes up in 65,536 equal
    intervals, which is too coarse for small states."""
    for b, x in enumerate(a.flatten().split(blocksize)):
        absmax_out[b] = x.abs().max()
        out.view(-1)[b * blocksize : b * blocksize + x.numel()] = torch.bucketize(x / absmax_out[b], (code[:-1] + code[1:]) / 2).to(torch.uint8)


def raw(x):
    return x.detach().numpy().tobytes().hex()


def run(case):
    p = torch.nn.Parameter(numbers(0))
    optimizer = bitsandbytes.optim.AdamW8bit([p], **case)
    for step in range(1, STEPS + 1):
        p.grad = numbers(step)
        optimizer.step()
    s = optimizer.state[p]
    return dict(case, param=raw(p), **{k: raw(s[k]) for k in ("state1", "state2", "absmax1", "absmax2")})


def main():
    cpu._quant_blockwise_fp32_direct = quantise
    maps = dict(signed=raw(create_dynamic_map(signed=True)), positive=raw(create_dynamic_map(signed=False)))
    with open(sys.argv[1], "w") as out:
        json.dump(dict(version=bitsandbytes.__version__, maps=maps, cases=[run(case) for case in CASES]), out, separators=(",", ":"))
        out.write("\n")


main()
