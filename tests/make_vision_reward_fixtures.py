#!/usr/bin/env python3
"""make_vision_reward_fixtures.py - tests/data/vision/rm.json: ten steps of reward models over images and texts in plain PyTorch, of transformers' models.

    python3 tests/make_vision_reward_fixtures.py [MODEL...]     (a development tool: see vision_oracle.py)

A pair is a record of tests/data/vision/run and the answer "no idea?". A model is transformers' AutoModel and the head of vision_records.py, in fp64; a
reward is the head's value at the last token. A step is the mean of -log sigmoid(difference) over four pairs in the order of the file, the last of an
epoch of three; AdamW. The file contains for each model the losses, the gradients' norms and the mean rewards, of two choices of trained parts, and how far PyTorch in fp32 is
from them.
"""
import json
import os
import sys
import tempfile

import torch
import transformers
from vision_oracle import MODELS, Inputs, dataset, forget, load
from vision_records import records, score_of

STEPS, BATCH, LR = 10, 4, 3e-4
FROZEN = {"all": (), "frozen_tower": ("vision_tower", "visual.")}
MERGER = ("visual.merger.mlp", "visual.merger.linear", "visual.deepstack_merger_list")  # the projector


def is_frozen(name, parts):
    return any(p in name for p in parts) and not any(p in name for p in MERGER)


def train(directory, pairs, parts, dtype=torch.float64):
    model, inputs = load(transformers.AutoModel, directory, dtype), Inputs(directory)
    score = torch.nn.Parameter(torch.tensor(score_of(model.config.get_text_config().hidden_size), dtype=torch.float32).to(dtype))
    params = [p for n, p in model.named_parameters() if p.requires_grad_(not is_frozen(n, parts)).requires_grad] + [score]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps, n = [], -(-len(pairs) // BATCH)
    for step in range(STEPS):
        at = step % n * BATCH
        rewards = []
        for texts, paths in pairs[at:at + BATCH]:
            for ids in texts:
                forget(model)
                rewards.append(model(**inputs(ids, paths, dtype), use_cache=False).last_hidden_state[0, -1] @ score)
        r = torch.stack(rewards).view(-1, 2)
        loss = -torch.nn.functional.logsigmoid(r[:, 0] - r[:, 1]).mean()
        opt.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], 1.0)
        opt.step()
        steps.append([float(f"{x.item():.9g}") for x in (loss, norm, r.mean())])
    return steps


def main():
    path = "tests/data/vision/rm.json"
    out = json.load(open(path)) if os.path.exists(path) else {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in sys.argv[1:] or MODELS:
            directory = f"tests/data/vision/{name}"
            ids = dataset(directory, f"{tmp}/pairs.h5", "pairs")
            pairs = [(texts, paths) for texts, (_, _, paths) in zip(ids, records(directory))]
            out[name] = {part: train(directory, pairs, parts) for part, parts in FROZEN.items()}
            rough = train(directory, pairs, (), torch.float32)
            out[name]["fp32"] = max(abs(a - b) / max(1, abs(b)) for x, y in zip(rough, out[name]["all"]) for a, b in zip(x, y))
            print(name, out[name]["all"][0], out[name]["all"][-1], flush=True)
            with open(path, "w") as f:
                f.write("{" + ",\n ".join(json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in out.items()) + "}\n")


if __name__ == "__main__":
    main()
