#!/usr/bin/env python3
"""Training steps of a random model with LoRA by transformers and PEFT: the peer of tests/bench_lora.sh. Prints tokens/s and the peak of resident
memory in MB.

  peer_peft.py [--device cpu|cuda] [--dtype fp32|bf16] [--batch B] [--seq T] [--threads N] [--steps N] [--rank R] KEY=VALUE...

KEY=VALUE describe the model as dtrain's section [model] does. A step is forward, backward, the clipping of the gradients' norm and AdamW of the
adapters of all linear layers but the head; in bf16 the model's weights and arithmetic are bf16, the adapters fp32, as PEFT has it.
"""
import argparse
import torch
from peft import LoraConfig, get_peft_model
from peer_step import rate_and_memory
from transformers import AutoConfig, AutoModelForCausalLM

cli = argparse.ArgumentParser()
cli.add_argument("--device", default="cpu")
cli.add_argument("--dtype", default="fp32")
for name, default in (("batch", 2), ("seq", 512), ("threads", 2), ("steps", 5), ("rank", 16)): cli.add_argument("--" + name, type=int, default=default)
cli.add_argument("keys", nargs="+")
o = cli.parse_args()


def value(text):
    if text in ("true", "false"): return text == "true"
    try: return float(text) if "." in text or "e" in text else int(text)
    except ValueError: return text


keys = {k: value(v) for k, v in (x.removeprefix("model.").split("=", 1) for x in o.keys)}
torch.set_num_threads(o.threads)
dtype = torch.float32 if o.dtype == "fp32" else torch.bfloat16
with torch.device(o.device):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(keys.pop("model_type"), use_cache=False, **keys), dtype=dtype)
model = get_peft_model(model, LoraConfig(r=o.rank, lora_alpha=2 * o.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
model.to(o.device).train()
trained = [p for p in model.parameters() if p.requires_grad]
ids = torch.randint(0, keys["vocab_size"], (o.batch, o.seq), device=o.device)

print(rate_and_memory(lambda: model(input_ids=ids, labels=ids).loss, trained, o.dtype, o.batch * o.seq, o.steps))
