"""vision_oracle.py - inputs of transformers' models with images, for scripts that make fixtures with them (development tools: they need torch,
transformers, Pillow, and programs of dtrain for the ids of datasets, which other tests compare with those of transformers' processors).

    dataset(directory, out, kind)   the ids of each text of the samples of a dataset of vision_records.py
    Inputs(directory)               of the model in a directory: Inputs(...)(ids, paths of images) -> arguments
    MODELS                          directories below tests/data/vision
"""
import json
import re
import subprocess

import torch
import transformers
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vision_records import lines_of

MODELS = ["hf/clip_llama", "hf/siglip_qwen2", "hf/gemma3"] + ["grids/" + m for m in ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl")]
torch.set_num_threads(1)


def samples(file, n):
    shown = [subprocess.run(["./dtrain-data", "show", file, str(i)], capture_output=True, text=True, check=True).stdout for i in range(n)]
    return [[[int(x) for x in re.findall(r"<(\d+)>", text)] for text in re.split(r"\n---- .*\n", s)] for s in shown]


def dataset(directory, out, kind):
    lines = list(lines_of(kind, directory))
    with open(out + ".jsonl", "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    subprocess.run(["./dtrain-data", "-q", "--force", "--kind", {"pairs": "preference"}.get(kind, kind), "--tokenizer", directory, "--images", directory,
                    "-o", out, out + ".jsonl"], check=True)
    return [texts[1:] if kind == "pairs" else texts for texts in samples(out, len(lines))]


class Inputs:
    def __init__(self, directory):
        config = json.load(open(f"{directory}/config.json"))
        with open(f"{directory}/preprocessor_config.json") as f:
            options = json.load(f)
        self.kind, self.token = config["model_type"], config.get("image_token_id", config.get("image_token_index"))
        plain = {k: v for k, v in options.items() if k != "image_processor_type"}
        if self.kind == "internvl":
            self.processor = GotOcr2ImageProcessorPil(**plain | {"crop_to_patches": True})
        elif self.kind.startswith("qwen"):
            self.processor = Qwen2VLImageProcessorPil(**plain)
        else:
            self.processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")

    def __call__(self, ids, paths, dtype=torch.float64):
        x = {"input_ids": torch.tensor([ids])}
        if paths:
            r = self.processor([Image.open(p).convert("RGB") for p in paths], return_tensors="pt")
            x["pixel_values"] = r["pixel_values"].to(dtype)
            if self.kind.startswith("qwen"):
                x |= {"image_grid_thw": r["image_grid_thw"], "mm_token_type_ids": (x["input_ids"] == self.token).int()}
        if self.kind == "gemma3":
            x["token_type_ids"] = (x["input_ids"] == self.token).int()
        return x


def load(cls, directory, dtype=torch.float64):
    of_experts = {"experts_implementation": "eager"} if directory.endswith("_moe") else {}
    return cls.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", **of_experts).to(dtype).train()


def forget(model):
    """Positions of the last text, which Qwen's models keep."""
    for m in model.modules():
        if hasattr(m, "rope_deltas"):
            m.rope_deltas = None
