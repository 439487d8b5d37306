#!/usr/bin/env python3
"""make_gpt2_hf_golden: writes gpt2_hf_golden.safetensors: a seeded small GPT-2 of Hugging Face's `transformers`, as its save_pretrained()
writes it, and beside its tensors what it makes of some tokens: golden.tokens (B, T), golden.logits (B, T, V).

needs: pip install torch transformers safetensors"""
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

B, T, V = 2, 9, 53
folder = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(7)
model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=12, n_embd=24, n_layer=2, n_head=3,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).eval()
with torch.no_grad():
    for name, tensor in model.named_parameters():  # starting values are small, and biases zero: nothing would show
        tensor.add_(torch.randn_like(tensor) * 0.2)
    tokens = torch.randint(V, (B, T))
    logits = model(tokens).logits
model.save_pretrained("/tmp/gpt2_hf", safe_serialization=True)
tensors = load_file("/tmp/gpt2_hf/model.safetensors")
tensors["golden.tokens"] = tokens.to(torch.int32)
tensors["golden.logits"] = logits.contiguous()
save_file(tensors, os.path.join(folder, "gpt2_hf_golden.safetensors"), metadata={"format": "pt"})
