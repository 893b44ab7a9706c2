#!/usr/bin/env python3
"""make_megatron_fixtures.py - tests/data/megatron: datasets that Megatron-LM's own builder wrote.

    python3 tests/make_megatron_fixtures.py        (a development tool: needs torch, numpy, megatron-core)

lines.txt            documents, a line each
NAME.bin, NAME.idx   the bytes of these lines with the end of text (256 for types of more than a byte), a document each; for int32 the words of a document
                     are its sequences
"""
import pathlib

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

out = pathlib.Path(__file__).parent / "data" / "megatron"
out.mkdir(exist_ok=True)
lines = [f"line {i} has {'many ' * (i % 5)}words" for i in range(40)]
(out / "lines.txt").write_text("".join(line + "\n" for line in lines))
for dtype in (numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint16):
    name = numpy.dtype(dtype).name
    builder = IndexedDatasetBuilder(str(out / f"{name}.bin"), dtype=dtype)
    for line in lines:
        sequences = [word.encode() for word in line.split(" ")] if name == "int32" else [line.encode()]
        ids = [[*sequence] for sequence in sequences]
        if numpy.dtype(dtype).itemsize > 1:
            ids[-1].append(256)
        builder.add_document(torch.tensor(sum(ids, [])), [len(x) for x in ids])
    builder.finalize(str(out / f"{name}.idx"))
