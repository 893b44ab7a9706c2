#!/usr/bin/env python3
"""Training steps of a transformer in PyTorch: the peer of `make bench` and `make bench-gpu`. One line for each way: its name, tokens/s, peak GiB on a
GPU, seconds until the first step was done (compilation).

  peer_pytorch.py [--device cpu|cuda] [--dtype fp32|bf16] [--batch B] [--seq T] [--threads N] [--steps N] [--ways a,b,...] [KEY=VALUE...]

KEY=VALUE describe the model as dtrain's section [model] does (default: GPT-2 124M). A step is forward, backward, the clipping of the gradients' norm
and AdamW with fp32 master weights. Ways:
  eager, compiled    fp32 weights, in bf16 by autocast
  master             compiled, bf16 weights and gradients with fp32 master weights
Compiled: torch.compile of a block, which all blocks share, and of the head with the loss. Attention is PyTorch's choice; +cudnn leaves it cuDNN's alone.
"""
import argparse, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

cli = argparse.ArgumentParser()
cli.add_argument("--device", default="cpu")
cli.add_argument("--dtype", default="bf16")
for name, default in (("batch", 4), ("seq", 1024), ("threads", 0), ("steps", 5)): cli.add_argument("--" + name, type=int, default=default)
cli.add_argument("--ways", default="eager")
cli.add_argument("keys", nargs="*")
o = cli.parse_args()
key = dict(k.removeprefix("model.").split("=", 1) for k in o.keys)
number = lambda name, default: int(key.get(name) or default)
gpt2 = key.get("model_type", "gpt2") == "gpt2"
D, L, H, V = number("hidden_size", 768), number("num_hidden_layers", 12), number("num_attention_heads", 12), number("vocab_size", 50257)
KV, HD, FF = number("num_key_value_heads", H), number("head_dim", D // H), number("intermediate_size", 4 * D)
P, theta = number("max_position_embeddings", 1024), float(key.get("rope_theta", 1e4))
qkv_bias = gpt2 or key.get("model_type") == "qwen2" or key.get("attention_bias") == "true"
tied = gpt2 or key.get("tie_word_embeddings") == "true"
padded = (V + 127) // 128 * 128 if o.device == "cuda" else V  # what those who train it do: rows of the table that no token has
cuda = o.device == "cuda"
sync = torch.cuda.synchronize if cuda else lambda: None
if o.threads: torch.set_num_threads(o.threads)
if cuda: torch.set_float32_matmul_precision("high")


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.LayerNorm if gpt2 else nn.RMSNorm
        self.n1, self.n2 = norm(D), norm(D)
        self.qkv, self.out = nn.Linear(D, (H + 2 * KV) * HD, bias=qkv_bias), nn.Linear(H * HD, D, bias=gpt2)
        self.up, self.down = nn.Linear(D, FF if gpt2 else 2 * FF, bias=gpt2), nn.Linear(FF, D, bias=gpt2)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, HD).transpose(1, 2) for y in self.qkv(self.n1(x)).split([H * HD, KV * HD, KV * HD], dim=2))
        if not gpt2: q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **({"enable_gqa": True} if KV != H else {}))
        x = x + self.out(y.transpose(1, 2).reshape(b, t, H * HD))
        h = self.up(self.n2(x))
        if gpt2: return x + self.down(F.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.norm = (nn.LayerNorm if gpt2 else nn.RMSNorm)(D)
        self.weight = table if tied else nn.Parameter(torch.randn(padded, D) * 0.02)

    def forward(self, h, y): return F.cross_entropy(F.linear(self.norm(h), self.weight).float().view(-1, padded), y.view(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(padded, D)
        self.wpe = nn.Embedding(P, D) if gpt2 else None
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        nn.init.normal_(self.wte.weight, std=0.02)
        self.head = Head(self.wte.weight)
        angle = torch.outer(torch.arange(o.seq).float(), theta ** (-torch.arange(0, HD, 2).float() / HD))
        self.register_buffer("cos", angle.cos()), self.register_buffer("sin", angle.sin())

    def forward(self, x, y):
        h = self.wte(x)
        if gpt2: h = h + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks: h = block(h, self.cos, self.sin)
        return self.head(h, y)


def adamw(params):
    try: return torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1, fused=True)
    except (RuntimeError, TypeError): return torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1)


def measure(way):
    torch.manual_seed(1)
    with torch.device(o.device): model = Model()
    if way != "eager":
        for block in model.blocks: block.compile()
        model.head.compile()
    cos, sin = model.cos, model.sin
    master = None
    if way == "master":
        master = [p.detach().clone() for p in model.parameters()]
        for m in master: m.grad = torch.zeros_like(m)
        model.to(torch.bfloat16)
        model.cos, model.sin = cos, sin
    params = list(model.parameters())
    opt = adamw(master or params)
    x = torch.randint(0, V, (o.batch, o.seq + 1), device=o.device)
    ids, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step():
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bf16" and not master):
            loss = model(ids, targets)
        loss.backward()
        if master: torch._foreach_copy_([m.grad for m in master], [p.grad for p in params])
        torch.nn.utils.clip_grad_norm_(master or params, 1.0)
        opt.step()
        if master:
            with torch.no_grad(): torch._foreach_copy_(params, master)
        for p in params: p.grad = None

    begin = time.perf_counter()
    step()
    sync()
    compilation = time.perf_counter() - begin
    for _ in range(4 if cuda else 1): step()
    times, group = [], 5 if cuda else 1  # of a GPU: several in a row, without a wait in between
    for _ in range(max(1, o.steps // group)):
        sync()
        begin = time.perf_counter()
        for _ in range(group): step()
        sync()
        times.append((time.perf_counter() - begin) / group)
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
    return o.batch * o.seq / statistics.median(times), memory, compilation


status = 0
for name in o.ways.split(","):
    way, _, attention = name.partition("+")
    try:
        torch._dynamo.reset()  # what was compiled has its attention in it
        torch.backends.cuda.enable_flash_sdp(attention != "cudnn")
        torch.backends.cuda.enable_mem_efficient_sdp(attention != "cudnn")
        torch.backends.cuda.enable_math_sdp(attention != "cudnn")
        torch.backends.cuda.enable_cudnn_sdp(True)
        result = measure(way)
        print(f"{name} {result[0]:.1f} {result[1]:.2f} {result[2]:.1f}", flush=True)
    except Exception as e:
        print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", file=sys.stderr, flush=True)
        status = 1
    if cuda:
        import gc
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
sys.exit(status)
