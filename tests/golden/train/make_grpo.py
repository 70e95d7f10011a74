#!/usr/bin/env python3
"""Writes grpo.json: advantages, losses and gradients by TRL's own code, on fixed inputs.

Made with: python 3.11, torch 2.9.1 (cpu), trl 0.26.2, transformers 4.57.3.
Run: python make_grpo.py [OUT]   (default: the folder of this script).

GRPOTrainer._compute_loss runs as it is, on an object that has only what it reads; the log-probabilities that its model would
give are the leaf tensor, so its gradient is d loss / d logp. The advantages run the lines of
GRPOTrainer._generate_and_score_completions that compute them. Inputs are float32, the arithmetic float64.
"""

import inspect
import json
import pathlib
import sys
import textwrap
import types
from collections import defaultdict

import torch
from trl import GRPOTrainer

HERE = pathlib.Path(__file__).parent
MAX_COMPLETION = 12


class Accelerator:
    num_processes = 1
    process_index = 0

    @staticmethod
    def gather(value):
        return value


def compute_loss(loss_type, logp, old, ref, mask, advantages, epsilon, epsilon_high, beta):
    """Loss and gradient of one batch by TRL."""
    leaf = logp.clone().requires_grad_(True)
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (leaf, torch.zeros_like(leaf)),
        top_entropy_quantile=1.0, tools=None, importance_sampling_level="token", beta=beta, loss_type=loss_type,
        epsilon_low=epsilon, epsilon_high=epsilon_high, use_vllm=False, vllm_importance_sampling_correction=False,
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False), max_completion_length=MAX_COMPLETION,
        current_gradient_accumulation_steps=1, accelerator=Accelerator(), model=types.SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)})
    ids = torch.zeros_like(mask, dtype=torch.long)
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask,
              "advantages": advantages, "num_items_in_batch": mask.sum()}
    if old is not None:
        inputs["old_per_token_logps"] = old
    if beta != 0:
        inputs["ref_per_token_logps"] = ref
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    metrics = trainer._metrics["train"]
    return {"loss": loss.item(), "gradient": leaf.grad, "clip_ratio": metrics["clip_ratio/region_mean"][0],
            "kl": metrics["kl"][0] if beta != 0 else None}


def advantages_of(rewards, group, scale):
    """The lines between these two marks, run as they stand in TRL."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    begin = source.index("        # Compute grouped-wise rewards")
    end = source.index("        # Slice to keep only the local part of the data")
    scope = {"self": types.SimpleNamespace(num_generations=group, num_generations_eval=group, scale_rewards=scale),
             "mode": "train", "torch": torch, "rewards": rewards}
    exec(textwrap.dedent(source[begin:end]), scope)
    return scope["advantages"], scope["is_std_zero"]


def rows(tensor, lengths):
    return [tensor[i, :n].tolist() for i, n in enumerate(lengths)]


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    torch.manual_seed(20260301)
    golden = {"max_completion_length": MAX_COMPLETION, "advantages": [], "losses": []}

    rewards = torch.tensor([1, 0, 0.5, 0.25, 1, 1, 1, 1, 0, 0, 0, 0, 0.1, 0.2, 0.3, 0.9], dtype=torch.float64)
    for scale in ["group", "none"]:
        advantages, zero = advantages_of(rewards, 4, scale)
        golden["advantages"].append({"scale": scale, "group": 4, "rewards": rewards.tolist(),
                                     "advantages": advantages.tolist(), "zero_std": zero.tolist()})

    lengths = [12, 5, 1, 9, 7, 12]
    mask = torch.tensor([[1 if t < n else 0 for t in range(max(lengths))] for n in lengths])
    shape = mask.shape
    logp = (-3 * torch.rand(shape)).float().double()
    near = (logp + 0.6 * torch.randn(shape)).float().double()  # many ratios outside the clip range
    reference = (logp + 0.8 * torch.randn(shape)).float().double()
    advantages = torch.tensor([1.3, -0.7, 0.4, -1.1, 0.0, 0.9], dtype=torch.float64)
    for loss_type in ["grpo", "dapo", "dr_grpo"]:
        for old, epsilon, epsilon_high, beta in [(near, 0.2, 0.2, 0.04), (near, 0.2, 0.28, 0.0), (None, 0.2, 0.2, 0.001)]:
            result = compute_loss(loss_type, logp, old, reference, mask, advantages, epsilon, epsilon_high, beta)
            golden["losses"].append({
                "type": loss_type, "epsilon": epsilon, "epsilon_high": epsilon_high, "beta": beta,
                "advantages": advantages.tolist(), "log_probs": rows(logp, lengths),
                "old_log_probs": rows(old if old is not None else logp, lengths),
                "reference": rows(reference, lengths) if beta != 0 else [[] for _ in lengths],
                "loss": result["loss"], "kl": result["kl"], "clip_ratio": result["clip_ratio"],
                "gradient": rows(result["gradient"], lengths)})
    (out / "grpo.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
