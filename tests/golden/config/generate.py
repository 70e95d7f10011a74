#!/usr/bin/env python3
"""Makes rope.json: config.json texts and the RoPE frequencies that transformers derives from them.

Made with transformers 4.57.3, torch 2.9.1. Run it in this folder. The frequencies are float32 values of
transformers.modeling_rope_utils, so they are compared with a relative tolerance of 1e-6.
"""

import json

from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=300)
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}

CASES = {
    "llama_default": LlamaConfig(**SIZES, rope_theta=100000.0),
    "llama_linear": LlamaConfig(**SIZES, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama_llama3": LlamaConfig(**SIZES, rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=LLAMA3),
    "llama_llama3_narrow": LlamaConfig(**SIZES, rope_theta=500000.0, max_position_embeddings=131072,
                                       rope_scaling=dict(LLAMA3, factor=8.0, original_max_position_embeddings=512)),
    "qwen2_default": Qwen2Config(**SIZES, rope_theta=1000000.0, tie_word_embeddings=True),
    "qwen2_yarn": Qwen2Config(**SIZES, rope_theta=1000000.0, max_position_embeddings=32768,
                              rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    "qwen2_yarn_short": Qwen2Config(**SIZES, rope_theta=10000.0, max_position_embeddings=2048,
                                    rope_scaling={"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0,
                                                  "attention_factor": 1.25, "original_max_position_embeddings": 256}),
    "qwen3_default": Qwen3Config(**SIZES, head_dim=128, rope_theta=1000000.0),
    "qwen3_yarn_mscale": Qwen3Config(**SIZES, head_dim=128, rope_theta=1000000.0, max_position_embeddings=40960,
                                     rope_scaling={"rope_type": "yarn", "factor": 2.0, "mscale": 0.8,
                                                   "mscale_all_dim": 0.5}),
}

out = {}
for name, config in CASES.items():
    kind = (config.rope_scaling or {}).get("rope_type", (config.rope_scaling or {}).get("type", "default"))
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    text = config.to_diff_dict()
    text["architectures"] = [type(config).__name__.replace("Config", "ForCausalLM")]
    out[name] = {"config": text, "inv_freq": [float(value) for value in inv_freq],
                 "attention_factor": float(attention_factor)}

with open("rope.json", "w") as file:
    json.dump(out, file, indent=1)
    file.write("\n")
