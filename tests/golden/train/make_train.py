#!/usr/bin/env python3
"""Writes the golden gradients of this folder, from the models and adapters of ../models.

Made with: python 3.11, torch 2.9.1 (cpu), transformers 4.57.3, peft 0.18.0, safetensors 0.8.0.
Run: python make_train.py [OUT]   (default: the folder of this script). Everything is computed in float64 and stored in float32.

  lora_<model>.safetensors   of adapter `all` on the golden tokens of the model:
      masked.loss            mean negative log-likelihood of tokens 28..63, the adapter on from token 27 on (tokens 0..26 are
                             the prompt; token 27, predicted by the prompt's last position, has no label)
      masked.grad.<module>.lora_A.weight / lora_B.weight
      masked.step.<...>      the factors after one step of torch.optim.AdamW (learning rate 0.01, weight decay 0.1)
      all.loss, all.grad...  the same with the adapter on everywhere and tokens 1..63 as labels, by PEFT itself
  full_<model>.safetensors   loss and gradients of all parameters of the model, tokens 1..63 as labels
"""

import pathlib
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"
sys.path.insert(0, str(MODELS))
from make_models import PROMPT, MaskedLora, load_ours  # noqa: E402

ADAPTED = ["qwen2_untied", "llama", "qwen3"]
FULL = ["qwen2_tied", "llama_rope_linear", "qwen3"]


def f32(tensor):
    return tensor.detach().to(torch.float32).contiguous()


def loss_of(model, ids, first):
    """Mean negative log-likelihood of ids[first:]."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    return cross_entropy(logits[first - 1:-1], ids[first:])


def lora_names(model):
    for name, module in model.named_modules():
        if isinstance(module, MaskedLora):
            yield name, module


def make_lora(out, name):
    directory, adapter = MODELS / name, MODELS / name / "adapters" / "all"
    ids = load_file(directory / "golden.safetensors")["input_ids"].long()
    golden = {}

    # PEFT, on everywhere.
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    peft = PeftModel.from_pretrained(base, adapter, is_trainable=True).to(torch.float64).train()
    loss = loss_of(peft, ids, 1)
    loss.backward()
    golden["all.loss"] = f32(loss.reshape(1))
    everywhere = {}
    for key, p in peft.named_parameters():
        if "lora_" in key:
            everywhere[key.removeprefix("base_model.model.").replace(".default", "")] = p.grad
    golden |= {f"all.grad.{key}": f32(grad) for key, grad in everywhere.items()}

    # Our definition of the mask; with the mask on everywhere it must be PEFT.
    ours, state = load_ours(directory, adapter)
    for p in ours.parameters():
        p.requires_grad_(False)
    factors = {}
    for module_name, module in lora_names(ours):
        module.a.requires_grad_(True)
        module.b.requires_grad_(True)
        factors[module_name + ".lora_A.weight"] = module.a
        factors[module_name + ".lora_B.weight"] = module.b
    loss_of(ours, ids, 1).backward()
    for key, grad in everywhere.items():
        error = (factors[key].grad - grad).abs().max().item()
        assert error < 1e-6, f"{key}: {error}"  # transformers computes norms and RoPE in float32
        factors[key].grad = None
    state["mask"][:PROMPT] = 0
    loss = loss_of(ours, ids, PROMPT + 1)
    optimizer = torch.optim.AdamW(factors.values(), lr=0.01, weight_decay=0.1)
    loss.backward()
    golden["masked.loss"] = f32(loss.reshape(1))
    golden |= {f"masked.grad.{key}": f32(p.grad) for key, p in factors.items()}
    optimizer.step()
    golden |= {f"masked.step.{key}": f32(p) for key, p in factors.items()}
    save_file(golden, out / f"lora_{name}.safetensors")
    print(f"{name}: masked loss {loss.item():.4f}, {len(factors)} factors")


def make_full(out, name):
    directory = MODELS / name
    ids = load_file(directory / "golden.safetensors")["input_ids"].long()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    loss = loss_of(model, ids, 1)
    loss.backward()
    golden = {"loss": f32(loss.reshape(1))} | {f"grad.{key}": f32(p.grad) for key, p in model.named_parameters()}
    save_file(golden, out / f"full_{name}.safetensors")
    print(f"{name}: loss {loss.item():.4f}, {len(golden) - 1} parameters")


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name in ADAPTED:
        make_lora(out, name)
    for name in FULL:
        make_full(out, name)
    for path in out.glob("*.safetensors"):  # safetensors writes them for the owner only
        path.chmod(0o644)


if __name__ == "__main__":
    main()
