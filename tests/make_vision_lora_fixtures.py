#!/usr/bin/env python3
"""make_vision_lora_fixtures.py - steps of AdamW on adapters of towers and projectors by PEFT: the expectations of e2e_vision_lora.sh.

    python tests/make_vision_lora_fixtures.py        (a development tool: needs torch, transformers, peft, bitsandbytes, Pillow)

tests/data/vision/adapted.txt  a line "run DATA MODEL KEYS" names a run, its kind of data and the settings of dtrain that are the same; then a line a step:
                               loss and gradient norm, in fp64
tests/data/vision/hf/*_all     adapters as PEFT saves them, with random values: also of layers that compute nothing
A step is the mean over the targets of all records. New adapters start with the values that dtrain samples.
"""
import json
import os
import shutil
import sys

import make_grid_run_fixtures as grid
import make_vision_run_fixtures as llava
import torch
import transformers
from make_lora_fixtures import start
from peft import LoraConfig, get_peft_model

OUT, RECORDS, STEPS = "tests/data/vision/", "tests/data/vision/run", 10
ALL = "lora.parts=tower,projector,llm lora.target_modules=all-linear"
RUNS = [  # model, settings of PEFT, those of dtrain; "PATH": from the adapter that PEFT saves
    ("hf/clip_llama", dict(r=2, lora_alpha=3, target_modules="all-linear"), f"lora.r=2 lora.alpha=3 {ALL}"),
    ("hf/clip_llama", dict(r=1, lora_alpha=2, target_modules="all-linear"), "PATH"),
    ("hf/siglip_qwen2", dict(r=1, lora_alpha=1, target_modules=["fc1", "linear_1"],
                             rank_pattern={"model.vision_tower.encoder.layers.0.mlp.fc1": 2}), "PATH"),
    ("hf/clip_llama", dict(r=2, lora_alpha=2, target_modules=["linear_1", "linear_2"], init_lora_weights="gaussian"),
     "lora.r=2 lora.alpha=2 lora.parts=projector lora.target_modules=linear_1,linear_2 lora.init=gaussian"),
    ("hf/gemma3", dict(r=2, lora_alpha=4, target_modules=r".*(vision_tower|language_model).*\.(q_proj|fc2|o_proj)", use_rslora=True),
     r"vision.train=llm lora.r=2 lora.alpha=4 lora.parts=tower,llm lora.use_rslora=true lora.target_modules=.*(vision_tower|language_model).*\.(q_proj|fc2|o_proj)"),
    ("grids/qwen2_5_vl", dict(r=2, lora_alpha=3, target_modules="all-linear"), f"lora.r=2 lora.alpha=3 {ALL}"),
    ("grids/qwen3_vl", dict(r=2, lora_alpha=3, target_modules=["attn.qkv", "linear_fc1", "linear_fc2", "q_proj"], alpha_pattern={"qkv": 5}),
     "lora.r=2 lora.alpha=3 lora.parts=tower,projector,llm lora.target_modules=attn.qkv,linear_fc1,linear_fc2,q_proj lora.alpha_pattern=qkv:5"),
    ("grids/qwen3_5", dict(r=2, lora_alpha=3, target_modules=r".*visual\.blocks.*\.(qkv|linear_fc1)"),
     r"lora.r=2 lora.alpha=3 lora.parts=tower lora.target_modules=.*visual\.blocks.*\.(qkv|linear_fc1)"),
    ("grids/internvl", dict(r=2, lora_alpha=3, target_modules="all-linear"), f"lora.r=2 lora.alpha=3 {ALL}"),
]


def name_here(name, model):
    """The name of an adapter's tensor in dtrain."""
    name = name.removeprefix("base_model.model.").replace(".default", "")
    pairs = [("model.language_model.", "language_model.model."), ("lm_head", "language_model.lm_head"), ("model.vision_tower.", "vision_tower."),
             ("model.multi_modal_projector.", "multi_modal_projector."), ("model.visual.merger.mlp.0.", "multi_modal_projector.linear_1."),
             ("model.visual.merger.mlp.2.", "multi_modal_projector.linear_2."), ("model.visual.merger.linear_fc", "multi_modal_projector.linear_"),
             ("model.visual.deepstack_merger_list.", "multi_modal_projector.deepstack."), ("model.visual.", "vision_tower.")]
    there, here = next(p for p in pairs if name.startswith(p[0]))
    return here + name[len(there):]


def prompts(path):
    """Samples of records with prompt and completion: ids, targets, inputs of images."""
    llava.MODEL = path
    return [(ids, targets, {} if pixels is None else dict(pixel_values=pixels)) for ids, targets, pixels in llava.read(RECORDS)]


def turns(path):
    """Of Gemma 3. Targets are what follows "model" and a line end, up to a full stop and a line end."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    processor, out = transformers.Gemma3ImageProcessorPil.from_pretrained(path), []
    begin, end = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in ("model\n", ".\n"))
    for line in open(OUT + "gemma3_chats.jsonl"):
        r = json.loads(line)
        ids, targets = r["ids"], [-100] * len(r["ids"])
        for i in range(len(ids)):
            if ids[i:i + len(begin)] == begin:
                first = last = i + len(begin)
                while ids[last:last + len(end)] != end:
                    last += 1
                targets[first:last + len(end)] = ids[first:last + len(end)]
        ids, targets = torch.tensor(ids), torch.tensor(targets)
        images = [llava.Image.open(grid.FILES + name).convert("RGB") for name in r.get("images", [])]
        more = dict(pixel_values=processor(images, return_tensors="pt")["pixel_values"]) if images else {}
        is_image = ids[:-1] == tokenizer.convert_tokens_to_ids("<image_soft_token>")
        out.append((ids[:-1], targets[1:], dict(more, token_type_ids=is_image.long()[None])))
    return out


def chats(path):
    tok, out = grid.tokenizer(os.path.basename(path)), []
    for r in grid.records():
        x = grid.Inputs(tok, r["messages"], False)
        ids = x.ids if x.ids[-1] == tok.eos_token_id else x.ids[:-1]  # without the line end after the last message
        first = len(ids) - len(tok(r["messages"][-1]["content"] + "<|im_end|>")["input_ids"])
        more = {k: v[:, :len(ids) - 1] if k == "mm_token_type_ids" else v for k, v in x.more.items()}
        ids = torch.tensor(ids)
        targets = torch.where(torch.arange(len(ids)) < first, -100, ids)
        out.append((ids[:-1], targets[1:], more))
    return out


def loss_of(model, samples):
    total, n = 0, 0
    for ids, targets, more in samples:
        model.base_model.model.model.rope_deltas = None
        more = {k: v.double() if k == "pixel_values" else v for k, v in more.items()}
        z = model(input_ids=ids[None], use_cache=False, **more).logits[0]
        total = total + torch.nn.functional.cross_entropy(z, targets, reduction="sum", ignore_index=-100)
        n += int((targets >= 0).sum())
    return total / n


def adapted(path, settings, saved):
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(**settings))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_" in name and saved:
                p.normal_(0, 0.2)
            elif ".lora_A." in name and "vision_tower.head." not in name:
                p.copy_(start(name_here(name, path), tuple(p.shape), settings.get("init_lora_weights") == "gaussian" and 1 / p.shape[0]))
    return model


def train(model, samples):
    model = model.double().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, samples)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p for p in trained if p.grad is not None], 1.0)
        optimizer.step()
        yield f"{loss.item():.9g} {norm.item():.9g}\n"


def main():
    torch.set_num_threads(1)
    with open(OUT + "adapted.txt", "w") as f:
        for name, settings, keys in RUNS:
            path = OUT + name
            model = adapted(path, settings, keys == "PATH")
            if keys == "PATH":
                keys = f"lora.path={path}_all"
                shutil.rmtree(path + "_all", ignore_errors=True)
                model.save_pretrained(path + "_all")
                os.unlink(path + "_all/README.md")
            data = turns if name == "hf/gemma3" else prompts if name.startswith("hf/") else chats
            print("run", data.__name__, path, keys, file=f)
            f.writelines(train(model, data(path)))
            print(name, keys, file=sys.stderr)


if __name__ == "__main__":
    main()
