"""Ten steps of LlavaForConditionalGeneration on records with images, from files to losses: what e2e_vision.sh compares runs of dtrain with.

    python tests/make_vision_run_fixtures.py tests/data/vision/run

needs torch, transformers and Pillow. The model is tests/data/vision/hf/clip_llama; images go through its image processor and texts through its
tokenizer, prompt and completion one by one. A step is the mean over the targets of four records in the order of the file, the last of an epoch of three;
AdamW in fp64, and how far fp32 is from it.
"""
import json
import os
import sys

import fixtures
import torch
import transformers
from make_vision_fixtures import n_tokens
from PIL import Image

MODEL, STEPS, BATCH = "tests/data/vision/hf/clip_llama", 10, 4
TRAINED = {"all": "", "projector": "multi_modal_projector", "noise": "", "prompts": ""}  # what is trained; noise: with NEFTune; prompts: on all tokens
ALPHA = 5.0


def read(folder):
    config = json.load(open(os.path.join(MODEL, "config.json")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    processor = transformers.AutoImageProcessor.from_pretrained(MODEL, backend="pil")
    out = []
    for line in open(os.path.join(folder, "records.jsonl")):
        r = json.loads(line)
        names = r.get("images", [r["image"]] if "image" in r else [])
        images = [Image.open(os.path.join(folder, name)).convert("RGB") for name in names]
        prompt = r["prompt"].replace("<image>", "<image>" * n_tokens(config))
        head, tail = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (prompt, r["completion"]))
        tail = tail + [tokenizer.eos_token_id]
        ids = torch.tensor(head + tail)
        completion = torch.arange(len(ids)) >= len(head)
        pixels = processor(images, return_tensors="pt")["pixel_values"] if images else None
        out.append((ids, completion, pixels))
    return out


def noise_on(model, step, sample):
    """transformers' hook for NEFTune with dtrain's random numbers: images replace the noisy embeddings of their placeholders."""
    def add(module, ids, x):
        bound = ALPHA / (x.shape[1] * x.shape[2]) ** 0.5
        return x + bound * torch.tensor(fixtures.noise(42, step, sample, *x.shape[1:]), dtype=x.dtype).reshape(x.shape)
    return model.get_input_embeddings().register_forward_hook(add)


def loss_of(model, records, part, step, first):
    total, count, placeholder = 0.0, 0, model.config.image_token_id
    for i, (ids, completion, pixels) in enumerate(records):
        pixels = None if pixels is None else pixels.to(next(model.parameters()).dtype)
        hook = noise_on(model, step, first + i) if part == "noise" else None
        z = model(input_ids=ids[None], pixel_values=pixels, use_cache=False).logits[0, :-1]
        if hook:
            hook.remove()
        targets = torch.where(ids != placeholder if part == "prompts" else completion, ids, -100)[1:]
        total = total + torch.nn.functional.cross_entropy(z, targets, reduction="sum", ignore_index=-100)
        count += int((targets >= 0).sum())
    return total / count


def train(records, part, dtype):
    model = transformers.LlavaForConditionalGeneration.from_pretrained(MODEL, attn_implementation="eager", dtype=torch.float32).to(dtype).train()
    params = [p for name, p in model.named_parameters() if p.requires_grad_(TRAINED[part] in name).requires_grad]
    opt = torch.optim.AdamW(params, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, n = [], -(-len(records) // BATCH)
    for step in range(STEPS):
        at = step % n * BATCH
        opt.zero_grad()
        loss = loss_of(model, records[at:at + BATCH], part, step, at)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], 1.0)
        opt.step()
        losses.append(float(loss.detach()))
    return losses


def main():
    torch.set_num_threads(1)
    records = read(sys.argv[1])
    with open(os.path.join(sys.argv[1], "losses.txt"), "w") as f:
        for part in TRAINED:
            exact = train(records, part, torch.float64)
            error = max(abs(a - b) / b for a, b in zip(train(records, part, torch.float32), exact))
            print(part, f"{error:.1e}", *(f"{v:.9g}" for v in exact), file=f)


if __name__ == "__main__":
    main()
