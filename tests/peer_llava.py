#!/usr/bin/env python3
"""Training steps of a random vision-language model by transformers' LlavaForConditionalGeneration: the peer of tests/bench_vision.sh. Prints images/s and
the peak of resident memory in MB.

  peer_llava.py MODEL [--device cpu|cuda] [--dtype fp32|bf16] [--train PARTS] [--batch IMAGES] [--text TOKENS] [--threads N] [--steps N]

MODEL is a directory with a llava config.json. PARTS are of tower, projector and llm. A step is forward, backward, the clipping of the gradients' norm and
AdamW; in bf16 master weights are fp32 and arithmetic is autocast.
"""
import argparse
import torch
from peer_step import rate_and_memory
from transformers import AutoConfig, LlavaForConditionalGeneration

cli = argparse.ArgumentParser()
cli.add_argument("model")
cli.add_argument("--device", default="cpu")
cli.add_argument("--dtype", default="fp32")
cli.add_argument("--train", default="tower,projector,llm")
for name, default in (("batch", 4), ("text", 64), ("threads", 2), ("steps", 5)): cli.add_argument("--" + name, type=int, default=default)
o = cli.parse_args()
torch.set_num_threads(o.threads)
torch.manual_seed(0)
config = AutoConfig.from_pretrained(o.model)
config.text_config.use_cache = False
with torch.device(o.device): model = LlavaForConditionalGeneration(config).train()
words = {"tower": "vision_tower", "projector": "multi_modal_projector", "llm": "language_model"}
names = [words[part] for part in o.train.split(",")]
head = {"lm_head"} if "llm" in o.train else set()
for name, p in model.named_parameters(): p.requires_grad_(any(n in name for n in names) or name.split(".")[0] in head)
trained = [p for p in model.parameters() if p.requires_grad]
vision = config.vision_config
n_image = (vision.image_size // vision.patch_size) ** 2
ids = torch.randint(256, config.text_config.vocab_size, (o.batch, n_image + o.text), device=o.device)
ids[:, :n_image] = config.image_token_id
labels = ids.masked_fill(ids == config.image_token_id, -100)
pixels = torch.randn(o.batch, 3, vision.image_size, vision.image_size, device=o.device)

print(rate_and_memory(lambda: model(input_ids=ids, pixel_values=pixels, labels=labels).loss, trained, o.dtype, o.batch, o.steps))
