#!/usr/bin/env python3
"""like_trl.py - compares a run of dtrain with TRL's run on the same data.

    python3 tests/like_trl.py RUN_DIR TASK NAME [TOLERANCE]      NAME: a run of tests/data/TASK/trl.json (tests/trl_runs.py says what is in it)

Compares every metric that TRL logged for each step, and the change of each tensor in OUTPUT_DIR/hf. Both compute in fp32. Errors are relative to the
value, or to 1 if values cancel (a loss of advantages that add up to 0).
"""
import json
import math
import pathlib
import struct
import sys

from fixtures import safetensors

TOLERANCE = float(sys.argv[4]) if len(sys.argv) > 4 else 2e-4
FORMAT = {"F32": ("f", 4), "F16": ("e", 2)}


def tensors(path):
    return {name: struct.unpack(f"<{len(data) // FORMAT[dtype][1]}{FORMAT[dtype][0]}", data)
            for name, (dtype, _, data) in safetensors(path).items() if dtype in FORMAT}


def moved(name, now, start):
    d = [a - b for a, b in zip(now, start)]
    if name.endswith("attn.c_attn.bias"):  # GPT-2's bias of keys, on which no loss depends: its gradients are roundings
        d[len(d) // 3 : 2 * len(d) // 3] = [0] * (len(d) // 3)
    return [math.sqrt(sum(x * x for x in d)), sum(x * math.cos(i) for i, x in enumerate(d)), sum(x * math.cos(3 * i + 1) for i, x in enumerate(d))]


run_dir, task, name = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
data = pathlib.Path(__file__).parent / "data"
expected = next(run for run in json.load(open(data / task / "trl.json")) if run["name"] == name)
ours = [row for row in map(json.loads, open(run_dir / "metrics.jsonl")) if "loss" in row]
bad = [] if len(ours) == len(expected["steps"]) else [f"{len(ours)} steps"]
largest = 0
for row, want in zip(ours, expected["steps"]):
    for key, value in zip(expected["metrics"], want):
        mine = row.get("lr" if key == "learning_rate" else key, row.get(f"{task.split('/')[0]}/{key}", "is not there"))
        if value is None:
            continue
        off = abs(mine - value) / max(1, abs(value)) if isinstance(mine, (int, float)) else math.inf
        largest = max(largest, off)
        if off > TOLERANCE:
            bad.append(f"step {row['step']}: {key} {mine}, TRL {value}")
now, start = tensors(run_dir / "hf" / "model.safetensors"), tensors(data / expected.get("start", "dpo/start") / "model.safetensors")
furthest = 0
for tensor, want in expected["moved"].items():
    if tensor not in now and tensor == "lm_head.weight":  # tied: the embedding's
        continue
    off = max(abs(a - b) for a, b in zip(moved(tensor, now[tensor], start[tensor]), want)) / max(want[0], 1e-6)
    furthest = max(furthest, off)
    if off > 10 * TOLERANCE:
        bad.append(f"{tensor} went {moved(tensor, now[tensor], start[tensor])}, TRL's {want}")
print(f"{name}: metrics off by {largest:.1e}, changes of tensors by {furthest:.1e}")
print("\n".join(bad[:12]))
sys.exit(bool(bad))
