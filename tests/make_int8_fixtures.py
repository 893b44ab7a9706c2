#!/usr/bin/env python3
"""make_int8_fixtures.py - tests/data/int8_product.json: products in int8 as bitsandbytes computes them (LLM.int8), for tests/test_device_int8.c.

    python3 tests/make_int8_fixtures.py tests/data/int8_product.json        (a development tool: needs torch and bitsandbytes)

The numbers are formulas that the test repeats. Those of A have few bits, so that they are the same in bf16 and fp16, to which bitsandbytes rounds
them before all else; some are beyond the threshold. The file holds, for each threshold, the codes of A, its scales, the outlier columns and the
product in fp32.
"""
import json
import sys

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch

M, N, K = 9, 11, 80
MASK = (1 << 64) - 1


def mix64(x):
    """dt_mix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def activation(i):
    """-127/64 .. 127/64, and some a multiple of that; row 4 is zeros."""
    if i // K == 4:
        return 0.0
    return ((mix64(i) >> 56) - 128) / 64 * (4 if mix64(i + 7777) % 40 == 0 else 1)


def weight(i):
    return ((mix64(i + 99999) >> 52) - 2048) / 2048


a = torch.tensor([activation(i) for i in range(M * K)]).view(M, K)
w = torch.tensor([weight(i) for i in range(N * K)]).view(N, K)
bias = torch.tensor([weight(i + 1 << 20) for i in range(N)])
cases = []
for threshold in (0.0, 6.0):
    state = bnb.MatmulLtState()
    state.threshold, state.has_fp16_weights = threshold, False
    state.CB, state.SCB, _ = F.int8_vectorwise_quant(w.to(torch.float16))
    q, scale, columns = F.int8_vectorwise_quant(a.to(torch.float16), threshold=threshold)
    y = bnb.autograd._functions.MatMul8bitLt.apply(a, w, None, bias, state)
    cases.append({"threshold": threshold, "codes": q.flatten().tolist(), "scales": scale.tolist(),
                  "outliers": [] if columns is None else columns.tolist(), "y": y.flatten().tolist()})
with open(sys.argv[1], "w") as f:
    json.dump({"bitsandbytes": bnb.__version__, "m": M, "n": N, "k": K, "codes": state.CB.flatten().tolist(), "scb": state.SCB.tolist(),
               "bias": bias.tolist(), "cases": cases}, f, separators=(",", ":"))
    f.write("\n")
