#!/usr/bin/env python3
"""Makes symmetric/ and asymmetric/: tiny qwen2 checkpoints packed by compressed-tensors itself, and expected.safetensors.

Made with compressed-tensors 0.15.0.1, transformers 4.57.3, torch 2.9.1. Run it in this folder.

symmetric:  all linears 4 bits in groups of 32, lm_head at 8 bits per channel (by name).
asymmetric: all linears 4 bits in groups of 32 with zero points; lm_head and layer 0's down_proj (by pattern) are left alone.
expected.safetensors holds "<folder>/<module>.weight" in BF16: what compressed-tensors unpacks the quantized weights to.
"""

import os
import shutil

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             QuantizationStatus, apply_quantization_config)
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
             vocab_size=50, max_position_embeddings=512)


def scheme(targets, bits, symmetric, group):
    return QuantizationScheme(targets=targets, weights=QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel", group_size=group))


def set_parameters(module, args):
    """Min-max scales (and zero points) per group."""
    weight = module.weight.data.float()
    groups = weight.reshape(weight.shape[0], -1, args.group_size or weight.shape[1])
    top = 2 ** (args.num_bits - 1)
    if args.symmetric:
        scale = groups.abs().amax(-1) / (top - 1)
        module.weight_scale.data.copy_(scale.to(module.weight_scale.dtype))
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((high - low) / (2 * top - 1)).to(module.weight_scale.dtype)
        module.weight_scale.data.copy_(scale)
        zero = (-top - low / scale.float()).round().clamp(-top, top - 1)
        module.weight_zero_point.data.copy_(zero.to(module.weight_zero_point.dtype))
    module.quantization_status = QuantizationStatus.FROZEN


expected = {}
for folder, groups, ignore in (
        ("symmetric", {"a": scheme(["Linear"], 4, True, 32), "b": scheme(["lm_head"], 8, True, None)}, []),
        ("asymmetric", {"a": scheme(["Linear"], 4, False, 32)}, ["lm_head", "re:.*0[.]mlp[.]down_proj"])):
    torch.manual_seed(7)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).to(torch.bfloat16)
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=ignore, format="pack-quantized",
                                                        quantization_status="initialized"))
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            set_parameters(module, module.quantization_scheme.weights)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    os.remove(f"{folder}/generation_config.json")
    quantized = [name for name, module in model.named_modules() if hasattr(module, "weight_packed")]
    compressor.decompress_model(model)
    for name in quantized:
        expected[f"{folder}/{name}.weight"] = model.get_submodule(name).weight.data.contiguous()
save_file(expected, "expected.safetensors")
