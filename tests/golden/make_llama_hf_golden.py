#!/usr/bin/env python3
"""make_llama_hf_golden: writes llama_hf_golden.safetensors: a seeded small Llama of Hugging Face's `transformers`, as its save_pretrained()
writes it, with what its config.json tells as metadata, and beside its tensors what it makes of some tokens: golden.tokens (B, T),
golden.logits (B, T, V).

needs: pip install torch transformers safetensors"""
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

B, T, V, NH, MAX_T, BASE = 2, 9, 31, 6, 14, 500
folder = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(7)
model = LlamaForCausalLM(LlamaConfig(vocab_size=V, max_position_embeddings=MAX_T, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                     num_attention_heads=NH, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
                                     rope_theta=float(BASE))).eval()
with torch.no_grad():
    for name, tensor in model.named_parameters():  # starting values are small: nothing would show
        tensor.add_(torch.randn_like(tensor) * 0.2)
    tokens = torch.randint(V, (B, T))
    logits = model(tokens).logits
model.save_pretrained("/tmp/llama_hf", safe_serialization=True)
tensors = load_file("/tmp/llama_hf/model.safetensors")
tensors["golden.tokens"] = tokens.to(torch.int32)
tensors["golden.logits"] = logits.contiguous()
save_file(tensors, os.path.join(folder, "llama_hf_golden.safetensors"),
          metadata={"format": "pt", "num_attention_heads": str(NH), "max_position_embeddings": str(MAX_T), "rope_theta": str(BASE)})
