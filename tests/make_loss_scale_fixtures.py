"""Training in fp16 with torch.amp.GradScaler: the expectations of mpi_loss_scale.c.

    python tests/make_loss_scale_fixtures.py tests/data/loss_scale.json

needs torch and transformers; nothing else in the tree does. Models are those of tests/data/hf, in fp16 with fp32 master weights; tokens are a formula
that the test repeats. A case has the sections of its run as text, for each step scale, loss, norm of the gradients and whether the update was left out, and
per tensor the norm of what training has changed and its product with the formula's numbers for "dot." + name. `drift` is how far all this is from
PyTorch in fp32 that leaves out the same steps.

GradScaler doubles after growth_interval clean steps. Section 9.3 doubles after window + 1 the first time after an overflow, and then after window: with
growth_interval = window + 1 and hysteresis = 1 the two coincide as long as each scale that was doubled overflows within the window. Cases of rules = "9.3" have the
scale set by a transcription of that section; all else is GradScaler's.

No step may be near the border: the largest of all gradients, of activations and of weights, is below 0.95 times what fp16 holds where a step is taken, and
above 1.05 times where it is not, on 1, 2 and 4 ranks. So how either side rounds decides nothing: that is some tenths of a percent (drift.norm). `first`, where
the formula of a case's tokens begins, is the first number with which this holds.
"""
import json
import math
import sys

import numpy as np
import torch

from make_model_fixtures import CASES as MODELS, build, digits, mix64, numbers

T, G, SAMPLES, STEPS = 8, 4, 8, 24
LARGEST = 65504.0
CASES = {
    "gpt2": dict(model="gpt2", first=52, rules="torch", power=22, window=3, hysteresis=1, consecutive=False),
    "llama": dict(model="llama", first=0, rules="torch", power=20, window=4, hysteresis=1, consecutive=False),
    "qwen3": dict(model="qwen3", first=43, rules="9.3", power=19, window=3, hysteresis=2, consecutive=False),
    "mistral": dict(model="mistral", first=0, rules="9.3", power=19, window=2, hysteresis=2, consecutive=True),
}
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-3)
DECAY, CLIP = 0.1, 1.0


class Rules:
    """Section 9.3 of algorithms.md."""

    def __init__(self, case):
        self.scale, self.iter, self.last = 2.0 ** case["power"], 0, -1
        self.hyst, self.case = case["hysteresis"], case

    def next(self, overflow):
        h = self.case["hysteresis"]
        if overflow:
            if h == 1 or self.hyst == 1:
                self.scale = max(self.scale / 2, 1)
            else:
                self.hyst -= 1
            self.last = self.iter
        else:
            if self.case["consecutive"]:
                self.hyst = h
            clean = self.iter - self.last - 1
            if clean > 0 and clean % self.case["window"] == 0:
                self.scale *= 2
                self.hyst = h
        self.iter += 1


def tokens(case):
    numbers = mix64(np.uint64(case["first"]) + np.arange(SAMPLES * T + 1, dtype=np.uint64))
    return (numbers % np.uint64(MODELS[case["model"]]["vocab_size"])).astype(np.int64)


def batch(ids, step):
    first = step * G % SAMPLES
    rows = [ids[i * T:i * T + T + 1] for i in range(first, first + G)]
    rows = torch.tensor(np.stack(rows))
    return rows[:, :-1], rows[:, 1:]


def scaler_of(case):
    return torch.amp.GradScaler("cpu", init_scale=2.0 ** case["power"], growth_factor=2.0, backoff_factor=0.5,
                                growth_interval=case["window"] + 1)


class Watch:
    """The largest gradient of any module's input or output, and of any weight."""

    def __init__(self, model):
        self.model, self.largest = model, 0.0
        self.hooks = [m.register_full_backward_hook(self.see) for m in model.modules()]

    def see(self, module, grad_input, grad_output):
        for g in (*grad_input, *grad_output):
            if g is not None:
                self.largest = max(self.largest, float(g.abs().max()))

    def take(self):
        largest = max([self.largest] + [float(p.grad.abs().max()) for p in self.model.parameters()])
        self.largest = 0.0
        return largest

    def end(self):
        for hook in self.hooks:
            hook.remove()


def optimizer_of(names, master):
    plain = [a for a in master if a.dim() <= 1]
    return torch.optim.AdamW([dict(params=[a for a in master if a.dim() > 1], weight_decay=DECAY), dict(params=plain, weight_decay=0.0)],
                             **OPTIMIZER)


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(input_ids=inputs, use_cache=False).logits.float().flatten(0, 1), targets.flatten())


def largest_of(model, data):
    """Of the unscaled loss: what decides about an overflow. For 1, 2 and 4 ranks, each with its part of the samples."""
    watch, largest = Watch(model), []
    for ranks in (1, 2, 4):
        parts = zip(*(x.chunk(ranks) for x in data))
        largest.append(0.0)
        for inputs, targets in parts:
            model.zero_grad()
            (loss_of(model, inputs, targets) / ranks).backward()
            largest[-1] = max(largest[-1], watch.take())
    watch.end()
    return largest


def check_distance(case, step, scale, skipped, largest):
    shares = [x * scale / LARGEST for x in largest]
    assert min(shares) > 1.05 if skipped else max(shares) < 0.95, (case["model"], step, scale, skipped, shares)


def copy_into(params, master):
    with torch.no_grad():
        for a, p in zip(master, params):
            p.copy_(a)


def train(case, dtype, trace=None):
    """trace: of the run in fp16, whose steps are left out again, in fp32."""
    model, plain = build(MODELS[case["model"]], dtype), build(MODELS[case["model"]], torch.float32)
    names, params = zip(*model.named_parameters())
    master = [torch.nn.Parameter(p.detach().clone()) for p in plain.parameters()]
    start = [a.detach().clone() for a in master]
    opt, scaler, rules = optimizer_of(names, master), scaler_of(case), Rules(case)
    ids, steps = tokens(case), []
    for k in range(STEPS):
        data, scale = batch(ids, k), scaler.get_scale()
        model.zero_grad()
        loss = loss_of(model, *data)
        (loss if trace else scaler.scale(loss)).backward()
        for a, p in zip(master, params):
            a.grad = p.grad.float()
        if not trace:
            scaler.unscale_(opt)
        norm = float(torch.nn.utils.clip_grad_norm_(master, CLIP))
        skipped = trace[k]["skipped"] if trace else not math.isfinite(norm)
        if trace:
            if not skipped:
                opt.step()
        else:
            copy_into(plain.parameters(), master)
            check_distance(case, k, scale, skipped, largest_of(plain, data))
            before = master[0].detach().clone()
            scaler.step(opt)
            assert torch.equal(before, master[0].detach()) == skipped
            rules.next(skipped)
            scaler.update(new_scale=rules.scale if case["rules"] == "9.3" else None)
            assert scaler.get_scale() == rules.scale, (case["model"], k)
        copy_into(params, master)
        steps.append(dict(scale=scale, skipped=skipped, loss=digits(float(loss.detach())), norm=None if skipped else digits(norm)))
    return steps, dict(zip(names, (a.detach().double() - s.double() for a, s in zip(master, start))))


def of_tensor(name, moved):
    x = moved.numpy().ravel()
    return dict(norm=digits(np.sqrt((x * x).sum())), dot=digits((x * numbers("dot." + name, x.size)).sum()))


def config(case):
    return f"""[data]
seq_len = {T}
shuffle = false
[batch]
train_batch_size = {G}
[optimizer]
lr = {OPTIMIZER["lr"]}
betas = {OPTIMIZER["betas"][0]}, {OPTIMIZER["betas"][1]}
eps = {OPTIMIZER["eps"]}
weight_decay = {DECAY}
max_grad_norm = {CLIP}
[scheduler]
type = constant
[precision]
dtype = fp16
initial_scale_power = {case["power"]}
loss_scale_window = {case["window"]}
hysteresis = {case["hysteresis"]}
consecutive_hysteresis = {"true" if case["consecutive"] else "false"}
"""


def make(name, case):
    steps, moved = train(case, torch.float16)
    plain, plain_moved = train(case, torch.float32, steps)
    taken = [(a, b) for a, b in zip(steps, plain) if not a["skipped"]]
    drift = dict(loss=max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(steps, plain)),
                 norm=max(abs(a["norm"] / b["norm"] - 1) for a, b in taken),
                 moved=max(float((moved[n] - plain_moved[n]).norm() / plain_moved[n].norm()) for n in moved))
    print(name, "scales", [int(math.log2(s["scale"])) for s in steps], "skipped", sum(s["skipped"] for s in steps), drift)
    return dict(name=name, model=case["model"], config=config(case), steps=steps, drift={k: float("%.2g" % v) for k, v in drift.items()},
                n_vocab=MODELS[case["model"]]["vocab_size"], first=case["first"], n_tokens=SAMPLES * T + 1, samples=G, tensors={n: of_tensor(n, x) for n, x in moved.items()})


def main():
    torch.set_num_threads(1)
    cases = [make(name, case) for name, case in CASES.items()]
    with open(sys.argv[1], "w") as f:
        json.dump(cases, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
