#!/usr/bin/env python3
"""Compare dtrain, in random layouts, with PyTorch and transformers (development tool; needs torch, transformers, h5py).

  reference_layouts.py WORK DTRAIN [FAMILY...]      (WORK: a folder that it creates; SEED and REPS in the environment)

Small random models of each family, 10 steps of an optimizer: in fp32, bf16 and fp16, with 1 to 3 ranks, stages, offload, recomputation, reduce_dtype, accumulation
with a last step that is shorter, groups of rates, one of them 0, decay, clipping, schedules, samples with weights. A run is compared with PyTorch in double
precision: losses, norms, rates, and the weights that it exports. The tolerance comes from rounding in the same steps. It is the larger of two errors: that of PyTorch
in the run's type, and that of double precision with noise of some ten roundings on the gradients. Exit status 1 when an error exceeds four times that.
Gradients sent in 16 bits also have the roundings of that type.
"""
import json, math, os, random, shutil, subprocess, sys
import h5py, numpy as np, torch, transformers
from safetensors.torch import load_file

STEPS, V, T, SAMPLES, SCALE = 10, 97, 12, 41, 4096
RMS = dict(vocab_size=V, max_position_embeddings=64, initializer_range=0.1)
FAMILIES = {
    "gpt2": dict(n_embd=40, n_layer=2, n_head=5, vocab_size=V, n_positions=32, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=1,
                 eos_token_id=2, initializer_range=0.08),
    "llama": dict(RMS, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, attention_bias=True,
                  mlp_bias=True, tie_word_embeddings=False),
    "qwen3": dict(RMS, hidden_size=36, intermediate_size=60, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=12,
                  tie_word_embeddings=True),
    "mistral": dict(RMS, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                    sliding_window=6, tie_word_embeddings=False),
    "qwen2": dict(RMS, hidden_size=40, intermediate_size=48, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5, tie_word_embeddings=True),
}
CLASSES = dict(gpt2="GPT2LMHeadModel", llama="LlamaForCausalLM", mistral="MistralForCausalLM", qwen2="Qwen2ForCausalLM", qwen3="Qwen3ForCausalLM")
DTYPES = dict(fp64=torch.float64, fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)
UNIT = dict(fp32=2.0**-24, bf16=2.0**-9, fp16=2.0**-12)
OFFLOADS = [(0, "none", "none"), (1, "cpu", "none"), (2, "cpu", "none"), (0, "nvme", "none"), (2, "nvme", "none"), (3, "none", "cpu"),
            (3, "none", "nvme"), (3, "cpu", "none"), (3, "cpu", "cpu"), (3, "cpu", "nvme"), (3, "nvme", "none"), (3, "nvme", "cpu"), (3, "nvme", "nvme")]


def class_of(family): return getattr(transformers, CLASSES[family])


def make_model(family, path):
    """Biases and norms are not those of a new model, which are trivial."""
    torch.manual_seed(sum(map(ord, family)))
    model = class_of(family)._from_config(class_of(family).config_class(**FAMILIES[family]), attn_implementation="eager").float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1: p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(path)
    return {n: p.detach().double() for n, p in model.named_parameters()}


def dataset(path, kind):
    f = h5py.File(path, "w")
    f.attrs["format"], f.attrs["version"], f.attrs["kind"], f.attrs["vocab_size"] = "dtrain-dataset", np.uint64(1), kind, np.uint64(V)
    return f


def make_tokens(path):
    """A Markov chain: there is something to learn. (inputs, targets, weights) of each sample."""
    rng = np.random.default_rng(5)
    after, tokens = rng.integers(0, V, size=(V, 3)), [int(rng.integers(V))]
    for _ in range(SAMPLES * T): tokens.append(int(after[tokens[-1], rng.integers(3)]))
    with dataset(path, "tokens") as f: f["tokens"] = np.array(tokens, np.uint16)
    t = torch.tensor(tokens)
    return [(t[i:i + T], t[i + 1:i + T + 1], torch.ones(T, dtype=torch.float64)) for i in range(0, SAMPLES * T, T)]


def make_sft(path):
    rng = np.random.default_rng(6)
    tokens, offsets, masks, weights, out = [], [0], [], [], []
    for _ in range(SAMPLES):
        n = int(rng.integers(3, T + 1))
        t, mask, w = rng.integers(0, V, size=n), np.zeros(n, np.uint8), float(rng.integers(1, 9) / 4)
        mask[int(rng.integers(1, n)):] = 1
        tokens.append(t), masks.append(mask), weights.append(w), offsets.append(offsets[-1] + n)
        out.append((torch.tensor(t[:-1]), torch.tensor(t[1:]), torch.tensor(mask[1:] * w)))
    with dataset(path, "sft") as f:
        f["tokens"], f["offsets"] = np.concatenate(tokens).astype(np.uint16), np.array(offsets, np.uint64)
        f["loss_mask"], f["weights"] = np.concatenate(masks), np.array(weights, np.float32)
    return out


def settings_of(family):
    first, block = ("transformer.wte", "h.1") if family == "gpt2" else ("embed_tokens", "layers.1")
    base = dict(type="adamw", lr=5e-3, lr_groups={first: 1e-3, block: 1e-2}, betas=(0.9, 0.95), eps=1e-8, decay=0.1, clip=0.5, schedule="cosine", warmup=3,
                least=0.1, batch=12, micro=2, task="pretrain", ranks=(1, 2, 3))
    return [base,
            dict(base, lr_groups={}, eps=1e-4, clip=0, schedule="constant", warmup=0, micro=4, decay=0.05, ranks=(1, 3)),  # on 3 ranks without accumulation
            dict(base, lr_groups={first: 0.0}, task="sft", clip=1.0, schedule="linear", eps=1e-6, micro=1),
            dict(base, type="adam", lr_groups={}, decay=0.02, clip=1.0, eps=1e-6)]


def peak(s, name): return next((lr for pattern, lr in s["lr_groups"].items() if pattern in name), s["lr"])


def factor(s, step):
    if step < s["warmup"]: return step / s["warmup"]
    p, c = (step - s["warmup"]) / (STEPS - s["warmup"]), s["least"]
    return {"constant": 1.0, "linear": c + (1 - c) * (1 - p), "cosine": c + (1 - c) * 0.5 * (1 + math.cos(math.pi * p))}[s["schedule"]]


def optimizer_of(s, names, master):
    groups = [dict(params=[a], lr=peak(s, n), weight_decay=s["decay"] if a.dim() > 1 else 0.0) for n, a in zip(names, master)]
    kind = torch.optim.AdamW if s["type"] == "adamw" else torch.optim.Adam
    opt = kind(groups, lr=s["lr"], betas=s["betas"], eps=s["eps"])
    return opt, torch.optim.lr_scheduler.LambdaLR(opt, [lambda k: factor(s, k)] * len(groups))


def loss_of(model, rows, dtype):
    total = 0
    for x, y, w in rows:
        z = model(input_ids=x[None], use_cache=False).logits[0]
        z = z.double() if dtype == "fp64" else z.float()
        total = total + (torch.nn.functional.cross_entropy(z, y, reduction="none") * w.to(z.dtype)).sum()
    return total


def train(family, path, data, s, dtype, noise=0.0, seed=0):
    """noise: on each gradient, relative to the root of the mean square of its tensor's."""
    load = lambda: class_of(family).from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model, wide = load().to(DTYPES[dtype]).train(), torch.float64 if dtype == "fp64" else torch.float32
    names, params = zip(*model.named_parameters())
    master = [torch.nn.Parameter(p.detach().clone().to(wide)) for p in load().parameters()]
    opt, schedule = optimizer_of(s, names, master)
    gen, scale, out = torch.Generator().manual_seed(seed), SCALE if dtype == "fp16" else 1.0, dict(losses=[], norms=[])
    for step in range(STEPS):
        first = step % -(-len(data) // s["batch"]) * s["batch"]
        rows = data[first:first + s["batch"]]
        n, loss_sum, total = sum(float(w.sum()) for _, _, w in rows), 0.0, [torch.zeros_like(a) for a in master]
        for i in range(0, len(rows), s["micro"]):
            model.zero_grad(set_to_none=True)
            loss = loss_of(model, rows[i:i + s["micro"]], dtype)
            loss_sum += float(loss.detach())
            (loss * (scale / n)).backward()
            for t, p in zip(total, params): t += p.grad.to(wide)
        for a, t in zip(master, total):
            a.grad = t / scale
            a.grad += noise * a.grad.pow(2).mean().sqrt() * torch.randn(a.grad.shape, generator=gen, dtype=wide)
        norm = math.sqrt(sum(float((a.grad.double() ** 2).sum()) for a in master))
        for a in master: a.grad *= min(1.0, s["clip"] / (norm + 1e-6)) if s["clip"] > 0 else 1.0
        opt.step(), schedule.step()
        with torch.no_grad():
            for a, p in zip(master, params): p.copy_(a)
        out["losses"].append(loss_sum / n), out["norms"].append(norm)
    return dict(out, weights={n: a.detach().double() for n, a in zip(names, master)})


def off_by(run, exact, start):
    """Of losses, of norms, and of what training has changed in the weights, all relative."""
    rel = lambda key: max(abs(a / b - 1) for a, b in zip(run[key], exact[key]))
    square = lambda a, b: sum(float(((a[n] - b[n]) ** 2).sum()) for n in b)
    return rel("losses"), rel("norms"), math.sqrt(square(run["weights"], exact["weights"]) / square(exact["weights"], start))


def draw_layout(rnd, s, offload, dtype):
    stage, optimizer, param = offload
    own = rnd.random() < 0.2
    layout = {"zero.stage": stage, "zero.offload_optimizer": optimizer, "zero.offload_param": param, "zero.sub_group_size": rnd.choice([4096, 20000000]),
              "zero.buffer_count": rnd.choice([1, 2, 3, 4]), "zero.pin_memory": rnd.choice(["true", "false"]), "zero.overlap_comm": rnd.choice(["true", "false"]),
              "zero.reduce_bucket_size": rnd.choice([2000000000, 1000]), "zero.allgather_bucket_size": rnd.choice([2000000000, 5000]),
              "zero.param_persistence_threshold": rnd.choice([0, 0, 3000]), "model.activation_checkpointing": rnd.choice(["none", "selective", "block"]),
              "run.reproducible": "true" if own else "false"}
    layout["precision.reduce_dtype"] = "auto" if own else rnd.choice(["auto", "auto", "fp32", "bf16" if dtype == "fp32" else dtype])
    device = {"DTRAIN_DEVICE": "queue", "DTRAIN_QUEUE_SEED": str(rnd.randrange(100))} if rnd.random() < 0.25 else {}
    return rnd.choice(s["ranks"]), layout, device


def run_dtrain(program, work, family, s, dtype, ranks, layout, device):
    out, keys = work + "/out", {
        "run.task": s["task"], "run.threads": 1, "run.max_steps": STEPS, "model.path": f"{work}/{family}", "data.train": f"{work}/{s['task']}.h5",
        "data.shuffle": "false", "data.seq_len": T, "batch.train_batch_size": s["batch"], "batch.micro_batch_size": s["micro"], "optimizer.type": s["type"],
        "optimizer.lr": s["lr"], "optimizer.lr_groups": ", ".join(f"{p}:{lr}" for p, lr in s["lr_groups"].items()), "optimizer.eps": s["eps"],
        "optimizer.betas": "%g, %g" % s["betas"], "optimizer.weight_decay": s["decay"], "optimizer.max_grad_norm": s["clip"], "scheduler.type": s["schedule"],
        "scheduler.warmup_steps": s["warmup"], "scheduler.min_lr_ratio": s["least"], "precision.dtype": dtype, "precision.loss_scale": SCALE,
        "zero.nvme_path": work, "checkpoint.save_steps": 0, "checkpoint.export": "hf", "checkpoint.export_dtype": "fp32", "log.report_to": "jsonl"}
    shutil.rmtree(out, ignore_errors=True)
    keys = [f"{k}={v}" for k, v in {**keys, **layout, "run.output_dir": out}.items()]
    subprocess.run(["mpirun", "-np", str(ranks), program, "/dev/null", *keys], env={**os.environ, **device}, check=True, capture_output=True, timeout=600)
    lines = [line for line in map(json.loads, open(out + "/metrics.jsonl")) if "loss" in line]
    return dict(losses=[x["loss"] for x in lines], norms=[x["grad_norm"] for x in lines], rates=[x["lr"] for x in lines],
                weights={n: w.double() for n, w in load_file(out + "/hf/model.safetensors").items()})


def is_right(got, s, start, off, allowed):
    rates = all(abs(x - s["lr"] * factor(s, k)) < 1e-9 for k, x in enumerate(got["rates"]))
    frozen = all(torch.equal(got["weights"][n], start[n]) for n in start if peak(s, n) == 0)
    return len(got["losses"]) == STEPS and rates and frozen and all(a <= b for a, b in zip(off, allowed))


def main():
    work, program, *families = sys.argv[1:]
    rnd, n_bad = random.Random(int(os.environ.get("SEED", 9))), 0
    os.makedirs(work, exist_ok=True)
    data = dict(pretrain=make_tokens(work + "/pretrain.h5"), sft=make_sft(work + "/sft.h5"))
    for family in families or FAMILIES:
        path, start, offloads, turn = f"{work}/{family}", make_model(family, f"{work}/{family}"), rnd.sample(OFFLOADS, len(OFFLOADS)), 0
        for s in settings_of(family):
            exact = train(family, path, data[s["task"]], s, "fp64")
            for dtype, unit in UNIT.items():
                own = off_by(train(family, path, data[s["task"]], s, dtype), exact, start)
                noise = 10 * unit if dtype == "fp32" else math.sqrt(10 / 3) * unit
                noisy = [off_by(train(family, path, data[s["task"]], s, "fp64", noise, seed), exact, start) for seed in (1, 2)]
                for _ in range(int(os.environ.get("REPS", 3))):
                    ranks, layout, device = draw_layout(rnd, s, offloads[turn % len(offloads)], dtype)
                    turn += 1
                    sent = layout["precision.reduce_dtype"] if ranks > 1 else "auto"
                    allowed = [4 * max(x) + (10 * UNIT[sent] if sent in ("bf16", "fp16") else 0) for x in zip(own, *noisy)]
                    got = run_dtrain(program, work, family, s, dtype, ranks, layout, device)
                    off = off_by(got, exact, start)
                    right = is_right(got, s, start, off, allowed)
                    n_bad += not right
                    show = lambda x: "%.1e %.1e %.1e" % tuple(x)
                    print("ok " if right else "BAD", family, dtype, ranks, *layout.values(), device, "off", show(off), "PyTorch", show(own), "allowed", show(allowed), flush=True)
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
