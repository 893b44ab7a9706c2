#!/usr/bin/env python3
"""Training step of GPT-2 in PyTorch on the CPU: the peer of `make bench`. Prints the median tokens/s of the counted steps.

  peer_pytorch.py DTYPE BATCH SEQ THREADS STEPS [compiled]     DTYPE fp32 or bf16 (bf16: autocast, fp32 master weights); compiled: torch.compile
"""
import math, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

dtype, B, T, threads, steps = sys.argv[1], *map(int, sys.argv[2:6])
torch.set_num_threads(threads)
L, H, D, V, P = 12, 12, 768, 50257, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, H, D // H).transpose(1, 2) for y in self.qkv(self.n1(x)).split(D, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(P, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks: h = block(h)
        return F.cross_entropy((self.norm(h) @ self.wte.weight.T).float().view(-1, V), y.view(-1))


torch.manual_seed(1)
model = Model()
step_model = torch.compile(model) if sys.argv[6:7] == ["compiled"] else model
try: opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
except (RuntimeError, TypeError): opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
x = torch.randint(0, V, (B, T + 1))
times = []
for s in range(steps + 2):
    begin = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        loss = step_model(x[:, :-1].contiguous(), x[:, 1:].contiguous())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if s >= 2: times.append(time.perf_counter() - begin)
print(f"{B * T / statistics.median(times):.1f}")
