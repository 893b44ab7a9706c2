#!/usr/bin/env python3
"""Attention and a large product by PyTorch on the GPU, for comparison with bench_compute: TFLOP/s of forward and backward, of flash attention and of cuDNN's."""
import math, torch, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

shapes = ((12, 12, 64, 32, 1024), (25, 25, 64, 8, 1024), (32, 32, 64, 8, 2048), (32, 32, 64, 4, 4096), (12, 2, 128, 8, 1024), (32, 32, 128, 8, 2048),
          (32, 8, 128, 8, 2048), (32, 8, 128, 4, 4096), (32, 8, 128, 1, 16384), (16, 16, 72, 8, 1024), (32, 32, 96, 4, 2048))  # as in bench_compute.c


def least_us(run):
    begin, end, best = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), math.inf
    for n in (2, 10, 10, 10):
        begin.record()
        for _ in range(n): run()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1000 / n)
    return best


print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
n = 8192
a, b = (torch.rand(n, n, device="cuda", dtype=torch.bfloat16) - 0.5 for _ in range(2))
us = least_us(lambda: a @ b)
print(f"  {'large product':44} {us:10.1f} us {2e-6 * n**3 / us:9.1f} TFLOP/s")
for H, KV, D, B, T in shapes:
    q, k, v = (torch.randn(B, h, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (H, KV, KV))
    g, pairs = torch.randn_like(q), B * T * (T + 1) / 2 * H * D
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        what = f"{H:2}/{KV} heads of {D:3}, {B:2} x {T:5} {name}"
        try:
            with sdpa_kernel([backend]):
                run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != KV)
                out, forward = run(), least_us(run)
                back = least_us(lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True))
            print(f"  {what:44} {forward:10.1f} us {4e-6 * pairs / forward:9.1f} TFLOP/s   backward {back:10.1f} us {10e-6 * pairs / back:9.1f} TFLOP/s", flush=True)
        except RuntimeError as e: print(f"  {what:44} {str(e).splitlines()[0][:60]}", flush=True)
