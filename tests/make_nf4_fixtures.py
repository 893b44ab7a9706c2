#!/usr/bin/env python3
"""make_nf4_fixtures.py - tests/data/nf4.json: a tensor as bitsandbytes stores it in four bits, for tests/test_nf4.c.

    python3 tests/make_nf4_fixtures.py tests/data/nf4.json        (a development tool: needs torch and bitsandbytes)

The weights are a formula that the test repeats. They have few bits, so that the mean of the blocks' maxima is exact in any order of the sum. The
maxima are quantised to the nearest number, as bitsandbytes' CUDA kernels and its plain implementation do; its library for processors takes the
other neighbour for some that are nearly halfway. Of the weights that come back the file holds a sum (FNV-1a of the bytes) for each type.
"""
import json
import sys

import bitsandbytes.functional as F
import torch
from fixtures import fnv, mix64

ROWS, COLS = 75, 320  # 375 blocks: one group that is full, one that is not


def weight(i):
    """Blocks of sixteen sizes; the seventh is zeros."""
    return ((mix64(i) >> 52) - 2048) * (0 if i // 64 == 7 else (mix64(i // 64) >> 60) + 1) / 2**15


def quantise_maxima(maxima, scales):
    """backends/default/ops.py, quantize_blockwise"""
    numbers = F.create_dynamic_map()
    scaled = [part * (1 / scale) for part, scale in zip(maxima.split(256), scales)]
    return torch.bucketize(torch.cat(scaled), (numbers[:-1] + numbers[1:]) / 2).to(torch.uint8)


def main():
    w = torch.tensor([weight(i) for i in range(ROWS * COLS)]).view(ROWS, COLS)
    codes, state = F.quantize_4bit(w, quant_type="nf4", compress_statistics=True)
    assert (state.blocksize, state.state2.blocksize, len(state.state2.absmax)) == (64, 256, 2)
    blocks = quantise_maxima(w.view(-1, 64).abs().max(1)[0] - state.offset, state.state2.absmax)
    off = blocks.int() - state.absmax.int()
    assert off.abs().max() <= 1 and off.count_nonzero() < 4
    state.absmax = blocks
    back = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        state.dtype = dtype
        back[name] = f"{fnv(F.dequantize_4bit(codes, state).contiguous().view(torch.uint8).flatten().tolist()):016x}"
    with open(sys.argv[1], "w") as f:
        json.dump({"rows": ROWS, "cols": COLS, "codes": bytes(codes.flatten().tolist()).hex(), "blocks": bytes(state.absmax.tolist()).hex(),
                   "scales": [x.hex() for x in state.state2.absmax.tolist()], "offset": state.offset.item().hex(), "back": back}, f)
        f.write("\n")


if __name__ == "__main__":
    main()
