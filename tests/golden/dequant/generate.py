#!/usr/bin/env python3
"""Makes dequant.safetensors and f16_values.sha256: golden vectors of dequantization and of the 16-bit float conversions.

Made with gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0, torch 2.9.1. Run it in this folder.

dequant.safetensors, for each GGUF type T that pith reads:
  T.blocks  U8  [rows, bytes per row]  random blocks (all bit patterns of the quants; finite f16 scales of every size)
  T.values  F32 [rows, columns]        what gguf.quants.dequantize makes of them
and for the conversions:
  f32.bits U32 [n], f32.as_f16 U16 [n] (numpy), f32.as_bf16 U16 [n] (torch): round to nearest even
f16_values.sha256: SHA-256 of the 65536 f32 values of all f16 bit patterns in order, NaN patterns as 0.
"""

import hashlib

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

rng = np.random.default_rng(20250701)

# Byte offsets of the f16 fields of a block.
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}


def random_f16(count):
    """Finite f16 values: any exponent, subnormals and zeros among them."""
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16)
    bits[:4] = [0x0000, 0x8000, 0x0001, 0x7BFF]
    return bits


tensors = {}
for name, fields in F16_FIELDS.items():
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    rows, per_row = (8, 6) if elements == 32 else (4, 3)
    blocks = rng.integers(0, 256, (rows * per_row, size), dtype=np.uint8)
    for field in fields:
        blocks[:, field:field + 2] = random_f16(rows * per_row).view(np.uint8).reshape(-1, 2)
    blocks = blocks.reshape(rows, per_row * size)
    values = dequantize(blocks, kind)
    assert np.isfinite(values).all()
    tensors[name + ".blocks"] = blocks
    tensors[name + ".values"] = np.ascontiguousarray(values, dtype=np.float32)

for name, kind in (("F16", GGMLQuantizationType.F16), ("BF16", GGMLQuantizationType.BF16)):
    halves = random_f16(256)
    tensors[name + ".blocks"] = halves.view(np.uint8).reshape(4, -1)
    tensors[name + ".values"] = dequantize(tensors[name + ".blocks"], kind).astype(np.float32)

# Floats around every place where rounding to 16 bits is decided.
edges = []
for base in (0x33000000, 0x33800000, 0x38000000, 0x387FE000, 0x38800000, 0x3F800000, 0x477FE000, 0x477FF000, 0x7F7F0000,
             0x7F7FFFFF, 0x00000000, 0x00000001, 0x00800000):
    for step in (-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001):
        if 0 <= base + step < 0x7F800000:
            edges += [base + step, (base + step) | 0x80000000]
bits = np.concatenate([np.array(edges, dtype=np.uint32), rng.integers(0, 1 << 32, 2000, dtype=np.uint32),
                       rng.integers(0x33000000, 0x48000000, 2000, dtype=np.uint32), [0x7F800000, 0xFF800000]])
bits = bits.astype(np.uint32)
floats = bits.view(np.float32)
bits = bits[~np.isnan(floats)]
floats = bits.view(np.float32)
with np.errstate(over="ignore"):
    tensors["f32.as_f16"] = floats.astype(np.float16).view(np.uint16)
tensors["f32.as_bf16"] = torch.from_numpy(floats.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
tensors["f32.bits"] = bits

save_file(tensors, "dequant.safetensors")

halves = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
values = np.where(np.isnan(halves), np.float16(0), halves).astype(np.float32)
with open("f16_values.sha256", "w") as file:
    file.write(hashlib.sha256(values.tobytes()).hexdigest() + "\n")
