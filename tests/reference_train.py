#!/usr/bin/env python3
"""Compare a run of dtrain with PyTorch and transformers (development tool; needs torch, transformers, h5py).

  reference_train.py START.h5 TRAIN.h5 METRICS.jsonl      (a run with data.shuffle = false, constant schedule, no packing)

START.h5 is a checkpoint with the weights before the first step (a run of one step with optimizer.lr = 0 writes one). The run's config.ini
must be next to METRICS.jsonl. Trains the same samples in the same order with torch.optim.AdamW in fp32 and prints the largest relative
difference of the losses and gradient norms; exit status 1 when it is above --tolerance.
"""
import argparse, configparser, json, os, sys
import h5py, numpy as np, torch, transformers

p = argparse.ArgumentParser()
p.add_argument("start"), p.add_argument("data"), p.add_argument("metrics")
p.add_argument("--tolerance", type=float, default=1e-4)
a = p.parse_args()

ini = configparser.ConfigParser(interpolation=None)
ini.read(os.path.join(os.path.dirname(a.metrics), "config.ini"))
with h5py.File(a.start) as f:
    text = f.attrs["model_config"]
    raw = json.loads(text if isinstance(text, str) else bytes(text))
    weights = {}
    f["model"].visititems(lambda n, d: weights.__setitem__(n.replace("/", "."), torch.tensor(d[()])) if isinstance(d, h5py.Dataset) else None)
config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
config._attn_implementation = "eager"
for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"):
    if hasattr(config, key): setattr(config, key, 0.0)
model = transformers.AutoModelForCausalLM.from_config(config).float()
missing = model.load_state_dict(weights, strict=False)
tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
assert not missing.unexpected_keys and set(missing.missing_keys) <= tied, missing
model.tie_weights()

decay = [q for n, q in model.named_parameters() if q.ndim > 1]
plain = [q for n, q in model.named_parameters() if q.ndim <= 1]
o = ini["optimizer"]
b1, b2 = (float(x) for x in o["betas"].split(","))
opt = torch.optim.AdamW([{"params": decay, "weight_decay": float(o["weight_decay"])}, {"params": plain, "weight_decay": 0.0}],
                        lr=float(o["lr"]), betas=(b1, b2), eps=float(o["eps"]))
T, G = int(ini["data"]["seq_len"]), int(ini["batch"]["train_batch_size"])
if not G: sys.exit("give batch.train_batch_size")
clip = float(o["max_grad_norm"])
tokens = h5py.File(a.data)["tokens"][()].astype(np.int64)
n = (len(tokens) - 1) // T
per_epoch = -(-n // G)
lines = [json.loads(l) for l in open(a.metrics)]
worst = 0.0
for line in (l for l in lines if "loss" in l):
    k = (line["step"] - 1) % per_epoch
    rows = range(k * G, min(k * G + G, n))
    x = torch.tensor(np.stack([tokens[i * T:i * T + T] for i in rows]))
    y = torch.tensor(np.stack([tokens[i * T + 1:i * T + T + 1] for i in rows]))
    logits = model(x).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip > 0 else float("inf"))
    opt.step()
    for name, ours, theirs in (("loss", line["loss"], loss.item()), ("grad_norm", line["grad_norm"], norm.item())):
        d = abs(ours - theirs) / abs(theirs)
        worst = max(worst, d)
        print(f"step {line['step']:4d} {name:9s} {ours:.9g} {theirs:.9g} {d:.2e}")
print(f"largest relative difference {worst:.3e}")
sys.exit(worst > a.tolerance)
