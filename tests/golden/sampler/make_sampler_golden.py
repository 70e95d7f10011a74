"""Writes sampler.json: what transformers' logits processors keep, and with what probability.

Made with transformers 4.57.3, torch 2.9.1 (CPU), python 3.11:  python make_sampler_golden.py
The processors run in the order of generate(): repetition penalty, temperature, top-k, top-p, min-p.
Cases where float rounding could decide about a token (a cumulative probability within 1e-5 of the cut) are not written.
"""

import json
import pathlib

import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB = 400


def distributions():
    generator = torch.Generator().manual_seed(20)
    yield "peaked", torch.randn(VOCAB, generator=generator) * 4
    yield "flat", torch.randn(VOCAB, generator=generator) * 0.3
    yield "mixed", torch.randn(VOCAB, generator=generator) * 2 + torch.linspace(3, -3, VOCAB)
    tied = torch.round(torch.randn(VOCAB, generator=generator) * 3)
    yield "tied", tied
    excluded = torch.randn(VOCAB, generator=generator) * 2
    excluded[::3] = -torch.inf
    yield "excluded", excluded


SETTINGS = [
    dict(),
    dict(temperature=0.7),
    dict(temperature=1.6),
    dict(top_k=1),
    dict(top_k=7),
    dict(top_k=390),
    dict(top_k=5000),
    dict(top_p=0.9),
    dict(top_p=0.3),
    dict(top_p=0.999),
    dict(top_p=0.0001),
    dict(min_p=0.05),
    dict(min_p=0.5),
    dict(min_p=1.0),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.8, temperature=0.9),
    dict(temperature=0.6, top_k=20, top_p=0.95),
    dict(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05),
    dict(temperature=1.4, top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.1),
    dict(temperature=2.0, top_p=0.6, min_p=0.1),
]


def run(logits, seen, setting):
    """Scores after the processors, or None when rounding could decide."""
    ids = torch.tensor([seen])
    scores = logits[None].clone()
    if "repetition_penalty" in setting:
        scores = RepetitionPenaltyLogitsProcessor(setting["repetition_penalty"])(ids, scores)
    if "temperature" in setting:
        scores = TemperatureLogitsWarper(setting["temperature"])(ids, scores)
    if "top_k" in setting:
        scores = TopKLogitsWarper(setting["top_k"])(ids, scores)
    if "top_p" in setting:
        values = torch.sort(scores[0].double()).values
        cumulative = torch.softmax(values, 0).cumsum(0)
        near = (cumulative - (1 - setting["top_p"])).abs() < 1e-5
        finite = values[values > -torch.inf]
        if bool((near & (values > -torch.inf)).any()) or len(torch.unique(finite)) < len(finite):
            return None  # equal values at the cut: torch's sort does not say which one goes
        scores = TopPLogitsWarper(setting["top_p"])(ids, scores)
    if "min_p" in setting:
        probabilities = torch.softmax(scores[0].double(), 0)
        if bool(((probabilities / probabilities.max() - setting["min_p"]).abs() < 1e-5)[probabilities < probabilities.max()].any()):
            return None
        scores = MinPLogitsWarper(setting["min_p"])(ids, scores)
    return scores[0]


def main():
    result = {"logits": {}, "seen": {}, "cases": []}
    for index, (name, logits) in enumerate(distributions()):
        generator = torch.Generator().manual_seed(index)
        seen = torch.randint(0, VOCAB, (60,), generator=generator).tolist()
        seen += torch.topk(logits, 3).indices.tolist() * 2
        result["logits"][name] = [None if x == -torch.inf else x for x in logits.tolist()]
        result["seen"][name] = seen
        for setting in SETTINGS:
            scores = run(logits, seen, setting)
            if scores is None:
                continue
            kept = torch.nonzero(scores > -torch.inf)[:, 0]
            probabilities = torch.softmax(scores.double(), 0)[kept]
            result["cases"].append(
                dict(
                    logits=name,
                    params=setting,
                    kept=kept.tolist() if len(kept) < VOCAB else "all",
                    probabilities=[float(f"{p:.7g}") for p in probabilities[:40].tolist()],
                )
            )
    path = pathlib.Path(__file__).with_name("sampler.json")
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    print(len(result["cases"]), "cases,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
