"""vocabulary_rows.py - the matrices of a vocabulary in directories of dtrain's, for e2e_rec_vocabulary.sh.

    python3 tests/vocabulary_rows.py same BEFORE AFTER N_OLD    does AFTER equal BEFORE, except rows from N_OLD on?
    python3 tests/vocabulary_rows.py same_tables BEFORE AFTER N_OLD   likewise of the matrices with a row for each token
    python3 tests/vocabulary_rows.py like DIR N_OLD FILE RUN K  are its rows from N_OLD on those of rows.txt, the K-th of RUN's two lists?
    python3 tests/vocabulary_rows.py differ DIR N_OLD           are all its rows from N_OLD on different?

A directory has one model.safetensors in fp32 or bf16.
"""
import pathlib
import struct
import sys

from fixtures import safetensors

TABLES = ("model.embed_tokens.weight", "transformer.wte.weight", "lm_head.weight")


def tensors(folder):
    return safetensors(pathlib.Path(folder) / "model.safetensors")


def same(before, after, n_old, names=None):
    a, b = tensors(before), tensors(after)
    assert a.keys() == b.keys(), "other tensors"
    for name, (_, shape, data) in a.items():
        if names and name not in names:
            continue
        n = len(data) * n_old // shape[0] if name in TABLES else len(data)
        assert b[name][2][:n] == data[:n], f"{name} differs"
        assert b[name][2] != data or name not in TABLES, f"{name} has the same rows"


def like(folder, n_old, file, run, k):
    wanted, mine = [], False
    for line in open(file):
        mine = line == f"run {run}\n" if line.startswith("run") else mine
        wanted += [] if line.startswith("run") or not mine else [[float(x) for x in line.split()]]
    wanted = wanted[k * len(wanted) // 2:(k + 1) * len(wanted) // 2]
    found = []
    for name, (kind, shape, data) in sorted(tensors(folder).items(), key=lambda t: t[0] == "lm_head.weight"):
        assert kind == "F32"
        if name in TABLES:
            found += [struct.unpack_from("<4f", data, row * shape[1] * 4) for row in range(n_old, shape[0])]
    assert len(found) == len(wanted), f"{len(found)} rows, expected {len(wanted)}"
    # seven digits are written; a step moves a number by up to the learning rate 1e-2, with an error of fp32's sums
    worst = max(abs(x - y) for f, w in zip(found, wanted) for x, y in zip(f, w))
    assert worst < (2e-5 if k else 1e-7), f"a number is off by {worst}"


def differ(folder, n_old):
    for name, (_, shape, data) in tensors(folder).items():
        if name in TABLES:
            size = len(data) // shape[0]
            rows = [data[i * size:(i + 1) * size] for i in range(n_old, shape[0])]
            assert len(set(rows)) == len(rows), f"{name} has equal rows"


command, *args = sys.argv[1:]
if command.startswith("same"):
    same(args[0], args[1], int(args[2]), TABLES if command == "same_tables" else None)
elif command == "differ":
    differ(args[0], int(args[1]))
else:
    like(args[0], int(args[1]), args[2], args[3], int(args[4]))
