#!/usr/bin/env python3
"""vision_records.py - records of tests/data/vision/run for any of the models below tests/data/vision, and reward models to start from.

    vision_records.py pairs MODEL_DIR        pairs of the answer and of "no idea?", one per line
    vision_records.py prompts MODEL_DIR      prompts with an answer
    vision_records.py score MODEL_DIR OUT    a copy of a directory with a scalar head: 0.3 cos(1), 0.3 cos(2) ... in fp32
"""
import json
import math
import os
import shutil
import struct
import sys

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "vision", "run")
IMAGE = {"llava": "<image>", "gemma3": "<start_of_image>", "internvl": "<IMG_CONTEXT>"}  # in texts


def config_of(directory):
    with open(f"{directory}/config.json") as f:
        return json.load(f)


def records(directory):
    word = IMAGE.get(config_of(directory)["model_type"], "<|vision_start|><|image_pad|><|vision_end|>")
    for line in open(f"{RUN}/records.jsonl"):
        r = json.loads(line)
        paths = [os.path.normpath(f"{RUN}/{name}") for name in r.get("images", [r["image"]] if "image" in r else [])]
        yield r["prompt"].replace("<image>", word), r["completion"], paths


def lines_of(kind, directory):
    for prompt, answer, paths in records(directory):
        texts = {"chosen": answer, "rejected": "no idea?"} if kind == "pairs" else {"answer": answer}
        yield {"prompt": prompt} | texts | ({"images": paths} if paths else {})


def score_of(n):
    return [0.3 * math.cos(i + 1) for i in range(n)]


def add_score(source, out):
    shutil.copytree(source, out)
    with open(f"{source}/model.safetensors", "rb") as f:
        before = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    n = config_of(source)["text_config"]["hidden_size"]
    header, chunks, at = {}, [], 0
    for name, t in sorted(before.items()):
        if name != "__metadata__" and not name.endswith("lm_head.weight"):
            chunks.append(data[slice(*t["data_offsets"])])
            header[name] = t | {"data_offsets": [at, at := at + len(chunks[-1])]}
    header["score.weight"] = {"dtype": "F32", "shape": [1, n], "data_offsets": [at, at + 4 * n]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{out}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(chunks) + struct.pack(f"<{n}f", *score_of(n)))


if __name__ == "__main__":
    if sys.argv[1] == "score":
        add_score(*sys.argv[2:])
    else:
        for line in lines_of(*sys.argv[1:]):
            print(json.dumps(line))
