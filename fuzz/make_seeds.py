#!/usr/bin/env python3
"""Makes the seeds of config, gguf and safetensors under corpus/. Made with gguf 0.19.0, safetensors 0.8.0. Run it here."""

import json
import os

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import save_file

for name in ("config", "gguf", "safetensors"):
    os.makedirs(f"corpus/{name}", exist_ok=True)

# config: every case of the RoPE golden file, and a packed model.
with open("../tests/golden/config/rope.json") as file:
    for name, case in json.load(file).items():
        with open(f"corpus/config/{name}.json", "w") as out:
            json.dump(case["config"], out)
packed = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "eos_token_id": [1, 2],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "sliding_window": 128, "use_sliding_window": False,
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*down_proj"], "kv_cache_scheme": {"num_bits": 8, "type": "int", "symmetric": True},
        "config_groups": {
            "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
                                                      "group_size": 32, "symmetric": False}},
            "b": {"targets": ["re:model.*v_proj$", "Embedding"],
                  "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "actorder": None}}}}}
with open("corpus/config/packed.json", "w") as out:
    json.dump(packed, out)

# gguf: one key of every type, and a model that is small but whole enough for its configuration.
writer = GGUFWriter("corpus/gguf/kinds.gguf", "none")
writer.add_uint8("a", 1), writer.add_int8("b", -1), writer.add_uint16("c", 2), writer.add_int16("d", -2)
writer.add_uint32("e", 3), writer.add_int32("f", -3), writer.add_uint64("g", 4), writer.add_int64("h", -4)
writer.add_float32("i", 0.5), writer.add_float64("j", 0.25), writer.add_bool("k", True), writer.add_string("l", "text")
writer.add_array("m", ["x", "yy", ""]), writer.add_array("n", [1, 2, 3]), writer.add_array("o", [0.5, 1.5])
rng = np.random.default_rng(1)
writer.add_tensor("f32", np.ones((2, 3), dtype=np.float32))
writer.add_tensor("f16", np.ones(5, dtype=np.float16))
for kind, size in (("Q4_0", 18), ("Q5_1", 24), ("Q8_0", 34), ("Q4_K", 144), ("Q6_K", 210)):
    writer.add_tensor(kind, rng.integers(0, 256, (2, size), dtype=np.uint8), raw_dtype=GGMLQuantizationType[kind])
writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()

for arch in ("llama", "qwen2"):
    writer = GGUFWriter(f"corpus/gguf/{arch}.gguf", arch)
    writer.add_embedding_length(8), writer.add_feed_forward_length(16), writer.add_block_count(1)
    writer.add_head_count(2), writer.add_head_count_kv(1), writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_freq_base(1e6)
    if arch == "qwen2":
        writer.add_string("qwen2.rope.scaling.type", "yarn"), writer.add_float32("qwen2.rope.scaling.factor", 4.0)
    else:
        writer.add_tensor("rope_freqs.weight", np.ones(2, dtype=np.float32))
    writer.add_array("tokenizer.ggml.tokens", ["a", "<|im_end|>", "b"])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 1])
    writer.add_eos_token_id(1), writer.add_bos_token_id(0)
    writer.add_tensor("token_embd.weight", np.ones((3, 8), dtype=np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()

# safetensors
save_file({"a": np.ones((2, 3), dtype=np.float32), "b": np.ones(4, dtype=np.float16), "c": np.ones((), dtype=np.int64),
           "d": np.ones((0, 2), dtype=np.uint8)}, "corpus/safetensors/kinds.safetensors", metadata={"format": "pt"})
save_file({"layer.weight": np.ones((4, 4), dtype=np.int8)}, "corpus/safetensors/one.safetensors")
save_file({}, "corpus/safetensors/empty.safetensors")
