"""fixtures.py - functions shared by the scripts that create fixtures (tests/make_*.py) and by those that read what programs write.

The random numbers are those of src/core/rng.c, which tests repeat.
"""
import json
import pathlib
import struct

MASK = 2**64 - 1


def mix64(x):
    """dt_mix64, of a number or of an array of uint64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def philox(key, high, low):
    """dt_philox4x32 of core.h."""
    c, k = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def noise(seed, step, sample, length, width):
    """NEFTune's noise, from -1 to 1, on the embeddings of a sample of the dataset: a list of length * width numbers."""
    key = mix64(mix64(mix64(mix64(seed) ^ 13 << 32) ^ step))  # 13: DT_RNG_NEFTUNE
    words = (w for t in range(length) for c in range(0, width, 4) for w in philox(key, mix64((mix64(sample) + t) & MASK), c // 4)[: width - c])
    return [2 * ((w >> 8) * 2.0**-24) - 1 for w in words]


def fnv(values):
    """FNV-1a of bytes, or of other small numbers."""
    h = 0xCBF29CE484222325
    for value in values:
        h = ((h ^ value) * 0x100000001B3) & MASK
    return h


def safetensors(path):
    """name: (data type, shape, bytes) of a file, in the order of the bytes."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[begin:][slice(*t["data_offsets"])]) for name, t in sorted(header.items(), key=lambda x: x[1]["data_offsets"])}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def train_on_answers(model, trained, optimizer, samples, n_steps, n_batch, after_step=lambda: None):
    """Samples are (ids, number of ids of the prompt). A line for each step: the mean loss of a batch's targets, and the norm of its gradient before it is
    clipped at 1."""
    import torch
    for step in range(n_steps):
        batch = [samples[(step * n_batch + i) % len(samples)] for i in range(n_batch)]
        loss, n = 0, sum(len(ids) - n_prompt for ids, n_prompt in batch)
        for ids, n_prompt in batch:
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, n_prompt - 1:-1], -1)
            loss = loss - logp.gather(1, torch.tensor(ids[n_prompt:])[:, None]).sum() / n
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        after_step()
        yield f"{loss.item():.7g} {norm.item():.7g}\n"
