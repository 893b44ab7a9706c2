"""like_base.py BASE START DIR - checks DIR, a model that dtrain-convert has written in fp32. It must equal START, with the matrices of its blocks quantised as BASE (int8 or nf4)
and everything else unchanged. In plain Python, each sum and product in fp32:

    int8  rows of outputs, with c = max |row|: q = round(127 w / c), halves to even,  w = q (c / 127)          (LLM.int8, Dettmers et al., arXiv:2208.07339)
    nf4   blocks of 64, row after row, with m = max |block|: the nearest of 16 levels to w / m, times m; and m less the mean of all blocks' likewise by 256
          numbers, in groups of 256, each by its largest                                                        (QLoRA, Dettmers et al., arXiv:2305.14314)
"""
import bisect
import os
import re
import struct
import sys

from fixtures import safetensors

BASE, START, DIR = sys.argv[1:]


def tensors(directory):
    for name, (dtype, shape, data) in safetensors(os.path.join(directory, "model.safetensors")).items():
        assert dtype == "F32", (name, dtype)
        yield name, shape, struct.unpack("<%df" % (len(data) // 4), data)


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def as_int8(values, width):
    for at in range(0, len(values), width):
        row = values[at:at + width]
        c = max(abs(w) for w in row)
        scale = fp32(c / 127)
        yield from (fp32(round(127 * w / c) * scale) if c > 0 else 0.0 for w in row)


def numbers(name):
    text = re.search(r"#define %s(.*?[^\\])\n" % name, open("include/dtrain/device/nf4.h").read(), re.S)[1]
    return [fp32(float(x)) for x in re.findall(r"-?[\d.]+(?:e-\d+)?(?=f)", text)]


LEVELS, MAP = numbers("DT_NF4_LEVELS"), numbers("DT_NF4_MAP")


def nearest(values, most, table):
    """The numbers of a table that are nearest to values / most."""
    inverse = fp32(1 / max(most, 1e-38))
    halves = [fp32(fp32(a + b) / 2) for a, b in zip(table, table[1:])]
    return [table[bisect.bisect_left(halves, fp32(x * inverse))] for x in values]


def as_nf4(values):
    blocks = [values[at:at + 64] for at in range(0, len(values), 64)]
    most = [max(abs(w) for w in block) for block in blocks]
    mean = fp32(sum(most) / len(most))
    less = [fp32(m - mean) for m in most]
    scales = []
    for at in range(0, len(less), 256):
        largest = max(abs(m) for m in less[at:at + 256])
        scales += [fp32(fp32(x * largest) + mean) for x in nearest(less[at:at + 256], largest, MAP)]
    for block, m, scale in zip(blocks, most, scales):
        yield from (fp32(x * scale) for x in nearest(block, m, LEVELS))


def stored(name, shape, values):
    in_block = ".layers." in name or ".h." in name or name.startswith("h.")
    if len(shape) != 2 or not in_block:
        return values
    cols = shape[1]
    turned = ".c_" in name  # GPT-2's are [in, out]: outputs are columns
    if turned:
        values = [w for i in range(cols) for w in values[i::cols]]
    width = shape[0] if turned else cols
    values = list(as_int8(values, width) if BASE == "int8" else as_nf4(values))
    return tuple(w for i in range(width) for w in values[i::width]) if turned else tuple(values)


found = {name.removeprefix("transformer."): (shape, values) for name, shape, values in tensors(DIR)}
n = 0
for name, shape, values in tensors(START):
    want = stored(name, shape, values)
    name = name.removeprefix("transformer.")
    if found[name] != (shape, want):
        sys.exit("%s differs" % name)
    n += want != values
print("%d matrices are %s" % (n, BASE))
sys.exit(0 if n > 0 and len(found) >= n else 1)
