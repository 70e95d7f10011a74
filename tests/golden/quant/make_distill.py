#!/usr/bin/env python3
"""Writes distill.safetensors: Jensen-Shannon divergences of next-token distributions and their gradients, by torch's autograd in
float64 from the definition.

Made with: python 3.11, torch 2.9.1 (cpu), safetensors 0.8.0.
Run: python make_distill.py [OUT]   (default: the folder of this script).
  teacher, student [rows, vocab]  logits; row 2 is sharp and disagrees, row 3 is equal
  divergence [rows], gradient [rows, vocab]  of each row's divergence with respect to the student
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def main():
    torch.manual_seed(9)
    teacher = 3 * torch.randn(4, 37)
    student = teacher + torch.randn(4, 37)
    teacher[2, 5] += 40
    student[2, 30] += 40
    student[3] = teacher[3]
    leaf = student.double().requires_grad_(True)
    p, q = torch.softmax(teacher.double(), 1), torch.softmax(leaf, 1)
    log_m = torch.log((p + q) / 2)
    divergence = 0.5 * (p * (p.log() - log_m)).sum(1) + 0.5 * (q * (q.log() - log_m)).sum(1)
    divergence.sum().backward()
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    save_file({"teacher": teacher, "student": student, "divergence": divergence.detach().float(),
               "gradient": leaf.grad.float()}, out / "distill.safetensors")


if __name__ == "__main__":
    main()
