#!/usr/bin/env python3
"""Writes heads.safetensors: loss, gradients and one AdamW step of the two heads by torch.

Made with: python 3.11, torch 2.9.1 (cpu), safetensors 0.8.0.
Run: python make_heads.py [OUT]   (default: the folder of this script). Computed in float64, stored in float32.

  x [10, 12], labels [10], weights [10], keep [10, 8]   inputs of both; loss = mean of weight * BCE over the rows
  switcher.<parameter>                 before; fc2(keep * relu(fc1 x))
  switcher.loss, switcher.grad.<...>, switcher.step.<...>    after torch.optim.AdamW, learning rate 1e-3, weight decay 0.01 on
                                       matrices, none on biases
  verifier.<...>                       the same for one linear layer
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch.nn.functional import binary_cross_entropy_with_logits

HERE = pathlib.Path(__file__).parent


def main():
    torch.set_num_threads(1)
    torch.manual_seed(20)
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE

    def rounded(tensor):  # what is stored is what is computed with
        return tensor.to(torch.float32).to(torch.float64)

    x = rounded(torch.randn(10, 12, dtype=torch.float64) * 1.5)
    labels = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0, 0, 1], dtype=torch.float64)
    weights = rounded(torch.rand(10, dtype=torch.float64) + 0.5)
    keep = (torch.rand(10, 8) > 0.2).to(torch.float64) * rounded(torch.tensor(1 / 0.8))
    golden = {"x": x, "labels": labels, "weights": weights, "keep": keep}

    def run(name, modules, forward):
        parameters = {}
        for prefix, module in modules.items():
            for key, p in module.named_parameters():
                p.data = rounded(p.data)
                parameters[prefix + key] = p
        golden.update({f"{name}.{key}": p.detach().clone() for key, p in parameters.items()})
        matrices = [p for key, p in parameters.items() if key.endswith("weight")]
        biases = [p for key, p in parameters.items() if key.endswith("bias")]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}], lr=1e-3)
        loss = binary_cross_entropy_with_logits(forward(), labels, weight=weights, reduction="sum") / len(labels)
        loss.backward()
        golden[f"{name}.loss"] = loss.detach().reshape(1)
        golden.update({f"{name}.grad.{key}": p.grad.clone() for key, p in parameters.items()})
        optimizer.step()
        golden.update({f"{name}.step.{key}": p.detach().clone() for key, p in parameters.items()})
        print(f"{name}: loss {loss.item():.6f}")

    fc1 = torch.nn.Linear(12, 8, dtype=torch.float64)
    fc2 = torch.nn.Linear(8, 1, dtype=torch.float64)
    run("switcher", {"fc1.": fc1, "fc2.": fc2}, lambda: fc2(keep * torch.relu(fc1(x)))[:, 0])
    linear = torch.nn.Linear(12, 1, dtype=torch.float64)
    run("verifier", {"": linear}, lambda: linear(x)[:, 0])

    save_file({key: value.to(torch.float32).contiguous() for key, value in golden.items()}, out / "heads.safetensors")
    (out / "heads.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
