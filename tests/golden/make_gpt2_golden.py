#!/usr/bin/env python3
"""Writes gpt2_golden.bin: a small GPT-2's loss, logits and every gradient, from PyTorch in float64.

    python3 tests/golden/make_gpt2_golden.py        (needs torch; the test that reads the file does not)

Several heads, fewer positions used than the model has, and a fifth of the targets ignored. Nothing is taken from torch's random
numbers, so any version writes the same inputs. Layout, little-endian:

    int32[10]        magic 0x325A5247, version 1, maxT, V, L, NH, C, B, T, number of targets that count
    int32[B*T]       tokens
    int32[B*T]       targets, -1: ignored
    float64          sum over valid targets of the negative log likelihood
    float64[V]       logits of the last position of the last sequence
    float32[n]       parameters: wte wpe, per layer ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb, lnfw lnfb
    float32[n]       gradient of the mean loss, in the same order, rounded from float64
"""
import math
import os
import struct

import torch

MAX_T, V, L, NH, C, B, T = 14, 29, 2, 3, 24, 3, 11


class Random:
    """xorshift64*, so that the inputs do not depend on a library."""

    def __init__(self, seed):
        self.state = seed

    def word(self):
        s = self.state
        s ^= s >> 12
        s ^= (s << 25) & 0xFFFFFFFFFFFFFFFF
        s ^= s >> 27
        self.state = s
        return (s * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF) >> 11

    def centered(self):
        return self.word() / 2.0**52 - 1.0


def as_float32(values):
    return struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values))


def tensor_maker(random):
    """Values larger than a fresh model's, so that nothing is nearly linear."""

    def tensor(name, shape, scale, offset=0.0):
        values = as_float32([offset + scale * random.centered() for _ in range(math.prod(shape))])
        return name, torch.tensor(values, dtype=torch.float64).reshape(shape).requires_grad_()

    return tensor


def parameters(random):
    """(name, tensor) in the order of the file."""
    tensor = tensor_maker(random)
    yield tensor("wte", (V, C), 0.8)
    yield tensor("wpe", (MAX_T, C), 0.5)
    for layer in range(L):
        for name, shape, scale, offset in (
            ("ln1w", (C,), 0.4, 1.0), ("ln1b", (C,), 0.3, 0.0),
            ("qkvw", (3 * C, C), 0.4, 0.0), ("qkvb", (3 * C,), 0.2, 0.0),
            ("attprojw", (C, C), 0.4, 0.0), ("attprojb", (C,), 0.2, 0.0),
            ("ln2w", (C,), 0.4, 1.0), ("ln2b", (C,), 0.3, 0.0),
            ("fcw", (4 * C, C), 0.4, 0.0), ("fcb", (4 * C,), 0.2, 0.0),
            ("fcprojw", (C, 4 * C), 0.2, 0.0), ("fcprojb", (C,), 0.2, 0.0),
        ):
            yield tensor(f"h.{layer}.{name}", shape, scale, offset)
    yield tensor("lnfw", (C,), 0.4, 1.0)
    yield tensor("lnfb", (C,), 0.3)


def gpt2(p, tokens):
    functional = torch.nn.functional
    x = p["wte"][tokens] + p["wpe"][:T]
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    for layer in range(L):
        q = {name.split(".")[2]: value for name, value in p.items() if name.startswith(f"h.{layer}.")}
        normed = functional.layer_norm(x, (C,), q["ln1w"], q["ln1b"], 1e-5)
        heads = (normed @ q["qkvw"].T + q["qkvb"]).reshape(B, T, 3, NH, C // NH).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(C // NH) + mask
        mixed = (scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(B, T, C)
        x = x + mixed @ q["attprojw"].T + q["attprojb"]
        normed = functional.layer_norm(x, (C,), q["ln2w"], q["ln2b"], 1e-5)
        hidden = functional.gelu(normed @ q["fcw"].T + q["fcb"], approximate="tanh")
        x = x + hidden @ q["fcprojw"].T + q["fcprojb"]
    return functional.layer_norm(x, (C,), p["lnfw"], p["lnfb"], 1e-5) @ p["wte"].T


def write_golden(name, header, model, p, random):
    """Draws tokens and targets, runs the model (p, tokens) -> logits forward and backward, and writes the file. header(valid): its first numbers;
    V, B and T stand at 3, 7 and 8 of them."""
    vocab, batch, t = (header(0)[i] for i in (3, 7, 8))
    tokens = torch.tensor([random.word() % vocab for _ in range(batch * t)]).reshape(batch, t)
    targets = torch.tensor([-1 if i % 5 == 2 else random.word() % vocab for i in range(batch * t)]).reshape(batch, t)
    valid = int((targets >= 0).sum())

    logits = model(p, tokens)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1), ignore_index=-1, reduction="sum")
    (loss / valid).backward()

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(header(valid))}i", *header(valid)))
        for ids in (tokens, targets):
            file.write(struct.pack(f"<{batch * t}i", *ids.reshape(-1).tolist()))
        file.write(struct.pack("<d", loss.item()))
        file.write(struct.pack(f"<{vocab}d", *logits[-1, -1].tolist()))
        for value in p.values():
            file.write(struct.pack(f"<{value.numel()}f", *value.reshape(-1).tolist()))
        for value in p.values():
            file.write(struct.pack(f"<{value.numel()}f", *value.grad.reshape(-1).tolist()))
    print(f"{path}: loss {loss.item() / valid:.6f} over {valid} targets, {os.path.getsize(path)} bytes")


def main():
    random = Random(20240607)
    p = dict(parameters(random))
    write_golden("gpt2_golden.bin", lambda valid: (0x325A5247, 1, MAX_T, V, L, NH, C, B, T, valid), gpt2, p, random)


if __name__ == "__main__":
    main()
