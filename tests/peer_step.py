"""A training step in PyTorch and its speed: shared by the peers of benchmarks (peer_llava.py, peer_peft.py)."""
import resource, statistics, time
import torch


def rate_and_memory(loss, trained, dtype, per_step, steps):
    """"things/s MB": per_step things a step, by the median of steps after two warm-up steps; the peak of resident memory, on a GPU of what PyTorch allocated there. A step
    is loss() and its backward, the clipping of the norm of trained's gradients and AdamW; dtype bf16 is autocast."""
    device = trained[0].device.type
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1, fused=True)
    times = []
    for _ in range(2 + steps):
        begin = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bf16"): value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sync()
        times.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"{per_step / statistics.median(times[2:]):.3f} {peak / 1e6:.0f}"
