#!/usr/bin/env python3
"""Writes the golden models and adapters of this folder (formats: ../README.md).

Made with: python 3.11, torch 2.9.1 (cpu), transformers 4.57.3, peft 0.18.0, safetensors 0.8.0.
Run: python make_models.py [OUT]   (default: the folder of this script). The result is a pure function of the seeds below.

Models are stored in the dtype given in MODELS; the reference pass loads exactly those stored values into float64
(transformers still computes RMSNorm and the RoPE tables in float32) and stores float32 results.
"""

import json
import math
import pathlib
import re
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

TOKENS = 64  # length of the golden sequence
PROMPT = 27  # masked runs: the adapter is on from this position on
BIAS_STD = 0.4

COMMON = dict(num_hidden_layers=2, rms_norm_eps=1e-6, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
SMALL = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=96, **COMMON)

MODELS = {
    "qwen2_tied": (torch.bfloat16, Qwen2Config(**{**SMALL, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 120},
                                                 rope_theta=1000000.0, tie_word_embeddings=True)),
    "qwen2_untied": (torch.float32, Qwen2Config(**SMALL, rope_theta=10000.0, tie_word_embeddings=False)),
    "qwen2_yarn": (torch.bfloat16, Qwen2Config(**{**SMALL, "max_position_embeddings": 2048}, rope_theta=10000.0,
                                                 tie_word_embeddings=False,
                                                 rope_scaling=dict(rope_type="yarn", factor=4.0,
                                                                   original_max_position_embeddings=512))),
    "llama": (torch.float32, LlamaConfig(**{**SMALL, "intermediate_size": 96, "rms_norm_eps": 1e-5}, rope_theta=10000.0,
                                         tie_word_embeddings=True)),
    "llama_rope_llama3": (torch.bfloat16, LlamaConfig(**{**SMALL, "num_attention_heads": 6}, head_dim=16, rope_theta=10000.0,
                                                        tie_word_embeddings=False,
                                                        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                                          high_freq_factor=4.0,
                                                                          original_max_position_embeddings=64))),
    # Also the biases that only llama may have: on o, gate, up and down.
    "llama_rope_linear": (torch.bfloat16, LlamaConfig(**SMALL, rope_theta=10000.0, tie_word_embeddings=False,
                                                        attention_bias=True, mlp_bias=True,
                                                        rope_scaling=dict(rope_type="linear", factor=2.5))),
    "qwen3": (torch.bfloat16, Qwen3Config(**SMALL, head_dim=16, rope_theta=1000000.0, tie_word_embeddings=False)),
}

ALL7 = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# model -> adapter -> (dtype on disk, LoraConfig arguments)
ADAPTERS = {
    "qwen2_untied": {
        "all": (torch.float32, dict(r=8, lora_alpha=16, target_modules=ALL7)),
        "all_bf16": (torch.bfloat16, dict(r=8, lora_alpha=16, target_modules=ALL7)),
        "subset": (torch.bfloat16, dict(r=8, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"],
                                        layers_to_transform=[1], layers_pattern="layers")),
        "rslora": (torch.bfloat16, dict(r=8, lora_alpha=8, use_rslora=True, target_modules=r".*\.(q|k|v|o)_proj")),
        # Keys are regular expressions that must match whole trailing name parts; the first match in file order wins.
        "patterns": (torch.float32, dict(r=8, lora_alpha=16, target_modules="all-linear",
                                         rank_pattern={"q_proj": 4, r"layers\.1\.mlp\.(gate|up)_proj": 12,
                                                       "model.layers.0.mlp.down_proj": 2},
                                         alpha_pattern={r"1\.self_attn\.v_proj": 40, "down_proj": 6,
                                                        "_proj": 1000, r".*o_proj": 5})),
        "patterns_rslora": (torch.bfloat16, dict(r=8, lora_alpha=10, use_rslora=True, target_modules=["q_proj", "up_proj"],
                                                 rank_pattern={r"0\..*\.q_proj": 3}, alpha_pattern={"up_proj": 7})),
        "lm_head": (torch.bfloat16, dict(r=8, lora_alpha=8, target_modules=["k_proj", "lm_head"])),
    },
    "llama": {"all": (torch.bfloat16, dict(r=8, lora_alpha=16, target_modules=ALL7))},
    "qwen3": {"all": (torch.bfloat16, dict(r=8, lora_alpha=16, target_modules="all-linear"))},
}


def seed_of(*names):
    value = 2166136261
    for char in "/".join(names).encode():
        value = ((value ^ char) * 16777619) & 0xFFFFFFFF
    return value


def randomize(model, generator):
    """Weights such that no part of the model is trivial: sharp softmax, live biases, norms away from 1, logits of a few units."""

    def normal(shape, std, mean=0.0):
        return torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean

    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("bias"):
                p.copy_(normal(p.shape, BIAS_STD))
            elif "norm" in name:
                p.copy_(normal(p.shape, 0.25, 1.3 if "q_norm" in name or "k_norm" in name else 1.0))
            elif "embed_tokens" in name:
                p.copy_(normal(p.shape, 2.0 / math.sqrt(p.shape[1]) if tied else 1.0))
            elif "lm_head" in name:
                p.copy_(normal(p.shape, 2.0 / math.sqrt(p.shape[1])))
            else:
                gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
                p.copy_(normal(p.shape, gain / math.sqrt(p.shape[1])))


def reference(model, ids):
    """logits [tokens, vocab] and states after the final norm [tokens, hidden]."""
    with torch.no_grad():
        out = model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
    logits, hidden = out.logits[0], out.hidden_states[-1][0]
    assert torch.isfinite(logits).all()
    return logits, hidden


def f32(tensor):
    return tensor.to(torch.float32).contiguous()


class MaskedLora(nn.Module):
    """y = W x + b + mask[token] * scaling * B (A x): our own definition, used to make and to check the adapter goldens."""

    def __init__(self, base, a, b, scaling, state):
        super().__init__()
        self.base, self.a, self.b, self.scaling, self.state = base, a.double(), b.double(), scaling, state

    def forward(self, x):
        delta = self.scaling * ((x @ self.a.T) @ self.b.T)
        return self.base(x) + delta * self.state["mask"][None, :, None]


def load_ours(model_dir, adapter_dir):
    """The model with the adapter read from disk without PEFT."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    tensors = load_file(adapter_dir / "adapter_model.safetensors")
    state = {"mask": torch.ones(TOKENS, dtype=torch.float64)}

    def lookup(patterns, name, default):
        for key, value in patterns.items():
            if re.match(rf"(.*\.)?({key})$", name):
                return value
        return default

    for key in sorted(k for k in tensors if k.endswith(".lora_A.weight")):
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[key], tensors[key.replace("lora_A", "lora_B")]
        rank = lookup(config["rank_pattern"], name, config["r"])
        alpha = lookup(config["alpha_pattern"], name, config["lora_alpha"])
        assert a.shape[0] == rank == b.shape[1]
        scaling = alpha / math.sqrt(rank) if config["use_rslora"] else alpha / rank
        parent, leaf = name.rpartition(".")[::2]
        parent = model.get_submodule(parent) if parent else model
        setattr(parent, leaf, MaskedLora(getattr(parent, leaf), a, b, scaling, state))
    return model, state


def readable(folder):
    for path in folder.glob("*.safetensors"):  # safetensors writes them for the owner only
        path.chmod(0o644)


def make_adapter(model_dir, model_name, name, dtype, arguments, ids, base_logits):
    out = model_dir / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    # Names share a seed up to the first "_", so `all` and `all_bf16` hold the same numbers in two dtypes.
    generator = torch.Generator().manual_seed(seed_of(model_name, name.split("_bf16")[0]))
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.name_or_path = model_name  # what adapter_config.json records as its base
    peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **arguments))
    with torch.no_grad():
        for key, p in sorted(peft.named_parameters()):
            if "lora_A" in key:
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / math.sqrt(p.shape[1]))
            elif "lora_B" in key:
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3 / math.sqrt(p.shape[1]))
            if "lora_" in key:
                p.data = p.data.to(dtype)
    peft.peft_config["default"].inference_mode = True
    peft.save_pretrained(out, save_embedding_layers=False)
    (out / "README.md").unlink(missing_ok=True)  # PEFT's model card
    config = json.loads((out / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"]) if isinstance(config["target_modules"], list) \
        else config["target_modules"]  # PEFT writes a set in hash order
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    # Reference 1: PEFT itself on the stored files.
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
    loaded = PeftModel.from_pretrained(base, out).to(torch.float64).eval()
    logits, _ = reference(loaded, ids)
    norms = {}
    for key, module in loaded.named_modules():
        if hasattr(module, "get_delta_weight") and "default" in getattr(module, "lora_A", {}):
            norms[key.removeprefix("base_model.model.")] = module.get_delta_weight("default").norm()
    with loaded.disable_adapter():
        off, _ = reference(loaded, ids)
    assert torch.equal(off, base_logits), "PEFT with the adapter off must be the base"

    # Reference 2: ours, which must agree with PEFT when on everywhere, and gives the masked run.
    ours, state = load_ours(model_dir, out)
    ours_logits, _ = reference(ours, ids)
    error = (ours_logits - logits).abs().max().item()
    assert error < 1e-5, f"{name}: own LoRA differs from PEFT by {error}"
    state["mask"][:PROMPT] = 0
    masked, _ = reference(ours, ids)
    assert torch.equal(masked[:PROMPT], base_logits[:PROMPT]), "prompt positions must be the base's"
    effect = (masked[PROMPT:] - base_logits[PROMPT:]).abs().mean().item()
    differs = (masked[PROMPT:] - logits[PROMPT:]).abs().mean().item()
    print(f"{model_name}/{name}: own vs PEFT {error:.1e}; mean |masked - base| {effect:.2f}, |masked - on| {differs:.2f}; "
          f"{len(norms)} modules")
    assert effect > 0.1 and differs > 0.01

    golden = {"input_ids": ids.to(torch.int32), "logits": f32(logits), "masked_logits": f32(masked),
              "prompt_length": torch.tensor([PROMPT], dtype=torch.int32)}
    golden |= {f"delta_norm.{key}": f32(norm.reshape(1)) for key, norm in norms.items()}
    save_file(golden, out / "golden.safetensors", metadata={"model": model_name})
    readable(out)


def make_model(root, name, dtype, config):
    out = root / name
    shutil.rmtree(out, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed_of(name))
    config.dtype = dtype
    model = AutoModelForCausalLM.from_config(config).to(torch.float64)
    randomize(model, generator)
    model.to(dtype).save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)

    ids = torch.randint(0, config.vocab_size, (TOKENS,), generator=generator)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64).eval()
    logits, hidden = reference(model, ids)
    single, _ = reference(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval(), ids)
    probabilities = logits.softmax(-1)
    relative = ((single - logits).norm() / logits.norm()).item()
    print(f"{name}: logits std {logits.std():.2f} max {logits.abs().max():.1f}, mean top probability "
          f"{probabilities.max(-1).values.mean():.2f}, transformers fp32 vs fp64 {relative:.1e} relative")
    assert 1 < logits.std() < 5
    save_file({"input_ids": ids.to(torch.int32), "logits": f32(logits), "final_hidden": f32(hidden)},
              out / "golden.safetensors", metadata={"model": name})
    readable(out)
    for adapter, (adapter_dtype, arguments) in ADAPTERS.get(name, {}).items():
        make_adapter(out, name, adapter, adapter_dtype, arguments, ids, logits)


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name, (dtype, config) in MODELS.items():
        make_model(root, name, dtype, config)


if __name__ == "__main__":
    main()
