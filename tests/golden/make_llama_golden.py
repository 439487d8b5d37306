#!/usr/bin/env python3
"""Writes llama_golden.bin: a small Llama's loss, logits and every gradient, from PyTorch in float64.

    python3 tests/golden/make_llama_golden.py       (needs torch; the test that reads the file does not)

Pairs of heads share keys and values. The layout is that of make_gpt2_golden.py, but for

    int32[13]        magic, version 2, maxT, V, L, NH, C, B, T, number of targets that count, KV, H, base of rotary positions
    parameters       wte, per layer ln1w qkvw attprojw ln2w fcw fcprojw, lnfw; fcw: gates, then values
"""
import math

import torch
from make_gpt2_golden import Random, tensor_maker, write_golden

MAX_T, V, L, NH, KV, C, H, BASE, B, T = 14, 29, 2, 4, 2, 24, 40, 500, 3, 11
D = C // NH


def parameters(random):
    """(name, tensor) in the order of the file."""
    tensor = tensor_maker(random)
    yield tensor("wte", (V, C), 0.8)
    for layer in range(L):
        for name, shape, scale, offset in (
            ("ln1w", (C,), 0.4, 1.0), ("qkvw", ((NH + 2 * KV) * D, C), 0.4, 0.0), ("attprojw", (C, C), 0.4, 0.0),
            ("ln2w", (C,), 0.4, 1.0), ("fcw", (2 * H, C), 0.4, 0.0), ("fcprojw", (C, H), 0.3, 0.0),
        ):
            yield tensor(f"h.{layer}.{name}", shape, scale, offset)
    yield tensor("lnfw", (C,), 0.4, 1.0)


def norm(x, weight):
    return torch.nn.functional.rms_norm(x, (C,), weight, 1e-5)


def turned(x):
    """x (B, heads, T, D): column i of the first half and of the second are turned by t * BASE^(-2i/D)."""
    angle = torch.outer(torch.arange(T, dtype=torch.float64), BASE ** (-torch.arange(0, D, 2, dtype=torch.float64) / D))
    cosine, sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def llama(p, tokens):
    x = p["wte"][tokens]
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    for layer in range(L):
        w = {name.split(".")[2]: value for name, value in p.items() if name.startswith(f"h.{layer}.")}
        heads = (norm(x, w["ln1w"]) @ w["qkvw"].T).reshape(B, T, NH + 2 * KV, D).transpose(1, 2)
        q, k, v = heads.split((NH, KV, KV), 1)
        k, v = turned(k).repeat_interleave(NH // KV, 1), v.repeat_interleave(NH // KV, 1)
        scores = turned(q) @ k.transpose(-1, -2) / math.sqrt(D) + mask
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C) @ w["attprojw"].T
        gate, value = (norm(x, w["ln2w"]) @ w["fcw"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * value) @ w["fcprojw"].T
    return norm(x, p["lnfw"]) @ p["wte"].T


def main():
    random = Random(20240717)
    p = dict(parameters(random))
    write_golden("llama_golden.bin", lambda valid: (0x325A5247, 2, MAX_T, V, L, NH, C, B, T, valid, KV, H, BASE), llama, p, random)


if __name__ == "__main__":
    main()
