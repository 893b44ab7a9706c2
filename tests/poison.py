"""poison.py - put one value into a tensor of a safetensors file (fp32, fp16 or bf16).

    python3 tests/poison.py FILE TENSOR INDEX nan|inf|-inf|NUMBER
"""
import json
import struct
import sys

path, name, index, value = sys.argv[1:]
with open(path, "r+b") as f:
    n, = struct.unpack("<Q", f.read(8))
    tensor = json.loads(f.read(n))[name]
    number = struct.pack("<f", float(value))
    raw = struct.pack("<e", float(value)) if tensor["dtype"] == "F16" else {"F32": number, "BF16": number[2:]}[tensor["dtype"]]
    f.seek(8 + n + tensor["data_offsets"][0] + int(index) * len(raw))
    f.write(raw)
