"""like_int8.py START DIR - is DIR, a model that dtrain-convert has written in fp32, START with the matrices of its blocks as int8 with a scale for each
output row, and all else as it was? LLM.int8 (Dettmers et al., arXiv:2208.07339), in plain Python:

    c = max |row|,  q = round(127 w / c), halves to even,  w = q (c / 127), with the scale c / 127 and the product in fp32
"""
import json
import os
import struct
import sys


def tensors(directory):
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        assert t["dtype"] == "F32", (name, t["dtype"])
        yield name, t["shape"], struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def as_int8(row):
    c = max(abs(w) for w in row)
    scale = fp32(c / 127)
    return [fp32(round(127 * w / c) * scale) if c > 0 else 0.0 for w in row]


def stored(name, shape, values):
    in_block = ".layers." in name or ".h." in name or name.startswith("h.")
    if len(shape) != 2 or not in_block:
        return values
    rows, cols = shape
    turned = ".c_" in name  # GPT-2's are [in, out]: outputs are columns
    lines = [values[i::cols] for i in range(cols)] if turned else [values[i * cols:(i + 1) * cols] for i in range(rows)]
    lines = [as_int8(line) for line in lines]
    return tuple(w for line in (zip(*lines) if turned else lines) for w in line)


found = {name.removeprefix("transformer."): (shape, values) for name, shape, values in tensors(sys.argv[2])}
n = 0
for name, shape, values in tensors(sys.argv[1]):
    want = stored(name, shape, values)
    name = name.removeprefix("transformer.")
    if found[name] != (shape, want):
        sys.exit("%s differs" % name)
    n += want != values
print("%d matrices are int8" % n)
sys.exit(0 if n > 0 and len(found) >= n else 1)
