#!/usr/bin/env python3
"""Items of a catalogue by transformers' beam search, which a prefix_allowed_tokens_fn keeps to them: the peer of tests/bench_beams.sh. Prints the seconds
of the searches and the share of dtrain's items that were found, too.

  peer_beams.py MODEL CATALOGUE.txt PROMPTS.jsonl DTRAIN.jsonl --beams B [--batch PROMPTS_AT_A_TIME] [--threads N] [--dtype fp32|bf16]

MODEL is a Hugging Face directory whose tokenizer has the level tokens; DTRAIN.jsonl is what dtrain-generate --jsonl has found: B lines for each prompt.
The time is that of generate only, after one warm-up batch.
"""
import argparse, json, time
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

cli = argparse.ArgumentParser()
for name in ("model", "catalogue", "prompts", "dtrain"): cli.add_argument(name)
for name, default in (("beams", 10), ("batch", 1), ("threads", 0)): cli.add_argument("--" + name, type=int, default=default)
cli.add_argument("--dtype", default="fp32")
o = cli.parse_args()
if o.threads: torch.set_num_threads(o.threads)
tokenizer = AutoTokenizer.from_pretrained(o.model, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(o.model, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[o.dtype]).eval()
end = model.generation_config.eos_token_id or model.config.eos_token_id
end = end[0] if isinstance(end, list) else end
tokenizer.pad_token_id = end


def ids_of(text): return tokenizer(text, add_special_tokens=False)["input_ids"]


follows, depth = {}, 0  # what was generated -> the tokens that may come next, as MiniOneRec has it
for sid in {line.split("\t")[0] for line in open(o.catalogue)}:
    ids = ids_of(sid + "\n") + [end]
    depth = max(depth, len(ids))
    for i, token in enumerate(ids): follows.setdefault(tuple(ids[:i]), set()).add(token)
follows = {prefix: sorted(tokens) for prefix, tokens in follows.items()}
prompts = [json.loads(line)["prompt"] for line in open(o.prompts)]


def search(texts):
    batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    n = batch["input_ids"].shape[1]

    def allowed(_, ids): return follows.get(tuple(ids[n:].tolist()), [end])

    with torch.inference_mode():
        out = model.generate(**batch, do_sample=False, num_beams=o.beams, num_return_sequences=o.beams, length_penalty=0.0, max_new_tokens=depth,
                             eos_token_id=end, pad_token_id=end, prefix_allowed_tokens_fn=allowed)
    return [text.strip() for text in tokenizer.batch_decode(out[:, n:], skip_special_tokens=True)]


search(prompts[:o.batch])
begin, found = time.perf_counter(), []
for i in range(0, len(prompts), o.batch): found += search(prompts[i:i + o.batch])
seconds = time.perf_counter() - begin
ours = [json.loads(line)["text"].strip() for line in open(o.dtrain)]
assert len(ours) == len(found), (len(ours), len(found))
common = sum(len(set(ours[i:i + o.beams]) & set(found[i:i + o.beams])) for i in range(0, len(ours), o.beams))
print(f"{seconds:.4f} {common / len(ours):.4f}")
