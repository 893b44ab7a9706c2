#!/usr/bin/env python3
"""make_sid_fixtures.py - tests/data/sid: embeddings and items for tests/e2e_sid.sh, ten steps of an RQ-VAE for tests/mpi_sid.c.

    python3 tests/make_sid_fixtures.py tests/data/sid        (a development tool: needs numpy, h5py, torch and transformers)

300 items of 20 hidden kinds, in 12 numbers each; items 5 and 40 are equal to the last bit. The same rows as NumPy's fp32 and as HDF5's compressed fp64.

rqvae.json: a small RQ-VAE written in PyTorch as MiniOneRec's is, that is with the straight-through value subtracted level by level, in fp64 from weights of fp32; parameters
are in the order of dt_rqvae_get. The gradient is that of the first step. plus.json: likewise of RQ-Kmeans+, whose encoder is x plus an MLP that starts at zero.

model: a Qwen2 of two layers for the tokenizer `bytes`; texts.npy: what transformers makes of the items' titles and descriptions with it, the mean over tokens of
last_hidden_state, computed in fp64.
"""
import json
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
import transformers

N, WIDTH, KINDS = 300, 12, 20
BATCH, HIDDEN, DIM, LEVELS, CODES, BETA, LR, DECAY, CLIP, STEPS = 40, [9, 6], 4, 3, 5, 0.25, 1e-2, 0.1, 0.5, 10


def mlp(x, layers):
    for i, (w, b) in enumerate(layers):
        x = F.linear(x, w, b)
        if i + 1 < len(layers):
            x = torch.relu(x)
    return x


def losses(x, encoder, decoder, books):
    z = mlp(x, encoder) + (x if books[0].shape[1] == WIDTH else 0)
    left, quantised, parts = z, torch.zeros_like(z), []
    for book in books:
        e = book[torch.cdist(left, book).argmin(dim=1)]
        parts.append(F.mse_loss(e, left.detach()) + BETA * F.mse_loss(e.detach(), left))
        through = left + (e - left).detach()
        left, quantised = left - through, quantised + through
    return F.mse_loss(mlp(quantised, decoder), x), torch.stack(parts).mean()


def train(rows, dim):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    sizes = [WIDTH, *HIDDEN, dim]
    sizes = list(zip(sizes, sizes[1:])) + [(o, i) for i, o in reversed(list(zip(sizes, sizes[1:])))]
    shapes = [shape for i, o in sizes for shape in ((o, i), (o,))] + [(CODES, dim)] * LEVELS
    params = [(torch.randn(shape) * 0.4).float().double().requires_grad_() for shape in shapes]
    if dim == WIDTH:
        with torch.no_grad():
            params[2 * len(HIDDEN)].zero_(), params[2 * len(HIDDEN) + 1].zero_()  # of the encoder's last layer
    layers = list(zip(params[0 : 2 * len(sizes) : 2], params[1 : 2 * len(sizes) : 2]))
    encoder, decoder, books = layers[: len(sizes) // 2], layers[len(sizes) // 2 :], params[2 * len(sizes) :]
    flat = lambda tensors: [float(v) for t in tensors for v in t.detach().flatten()]
    out = {"batch": BATCH, "width": WIDTH, "hidden": HIDDEN, "dim": dim, "levels": LEVELS, "codes": CODES, "beta": BETA}
    out |= {"lr": LR, "weight_decay": DECAY, "clip": CLIP, "before": flat(params), "losses": []}
    optimizer = torch.optim.AdamW(params, lr=LR, weight_decay=DECAY)
    x = torch.from_numpy(rows[:BATCH]).double()
    for step in range(STEPS):
        optimizer.zero_grad()
        reconstruction, quantisation = losses(x, encoder, decoder, books)
        (reconstruction + quantisation).backward()
        if step == 0:
            out["gradient"] = flat(p.grad for p in params)
        out["losses"].append([float(reconstruction.detach()), float(quantisation.detach())])
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        optimizer.step()
    return out | {"after": flat(params)}


def embed(folder, items):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(11)
    config = transformers.Qwen2Config(vocab_size=257, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    config.update({"max_position_embeddings": 64, "tie_word_embeddings": True, "initializer_range": 0.5})
    model = transformers.Qwen2ForCausalLM(config)
    model.save_pretrained(folder / "model")
    (folder / "model" / "generation_config.json").unlink(missing_ok=True)
    model = model.double().model.eval()
    out = []
    for i in range(len(items)):
        item = items[str(i)]
        text = " ".join([item["title"], *item["description"]])
        with torch.no_grad():
            out.append(model(torch.tensor([list(text.encode())])).last_hidden_state[0].mean(dim=0).numpy())
    np.save(folder / "texts.npy", np.stack(out).astype("<f4"))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    kinds = rng.normal(size=(KINDS, WIDTH))
    rows = (kinds[rng.integers(0, KINDS, N)] + 0.3 * rng.normal(size=(N, WIDTH))).astype("<f4")
    rows[40] = rows[5]
    np.save(folder / "items.npy", rows)
    with h5py.File(folder / "items.h5", "w", libver=("earliest", "v108")) as f:
        f.create_dataset("text/emb", data=rows.astype("<f8"), chunks=(64, WIDTH), compression="gzip")
        f.create_dataset("norms", data=np.linalg.norm(rows, axis=1))
    items = {str(i): {"title": f"Item {i}", "description": ["of kind", str(i % 7)], "brand": "none"} for i in range(N)}
    items["3"]["title"] = "A title\twith a tab"
    (folder / "rqvae.json").write_text(json.dumps(train(rows, DIM)) + "\n")
    (folder / "plus.json").write_text(json.dumps(train(rows, WIDTH)) + "\n")
    embed(folder, items)
    (folder / "items.item.json").write_text(json.dumps(dict(reversed(items.items())), indent=0))


if __name__ == "__main__":
    main()
