#!/usr/bin/env python3
"""Writes fake_quant.safetensors: quantizers with learned ranges, their gradients, and range initialisation.

Made with: python 3.11, torch 2.9.1 (cpu), safetensors 0.8.0.
Run: python make_fake_quant.py [OUT]   (default: the folder of this script).

Gradients are torch's own, through x^ = (clamp(round(x / s - round(o)), low, high) + round(o)) s with straight-through rounding, in
float64. Inputs lie at least 1e-3 of a step away from rounding ties. Per case:
  x, g [rows, cols]           input, gradient of x^
  scale, offset [tiles]       learned parameters (offset only when asymmetric; not whole numbers)
  y, dx, dscale, doffset      results
  minmax_*, grid2_*, grid3_*  parameters from the data: plain range, least squared and least cubed error
  dynamic                     x^ with the plain range
  spec I32 [4]                low, high, symmetric, group (0 = one tile, -1 = rows)
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
CASES = {  # bits, symmetric, group, rows, cols
    "w4_channel": (4, True, -1, 6, 64),
    "w4_group": (4, True, 32, 4, 96),
    "kv8_tensor": (8, True, 0, 4, 32),
    "a16_tensor": (16, False, 0, 5, 32),
    "a8_token": (8, False, -1, 5, 32),
    "w4_group_offset": (4, False, 32, 3, 64),
}


def straight_through_round(x):
    return x + (torch.round(x) - x).detach()


def tiles_of(x, group):
    if group == 0:
        return x.reshape(1, -1)
    return x if group == -1 else x.reshape(-1, group)


def quantize(tiles, scale, offset, low, high):
    o = straight_through_round(offset)[:, None]
    q = torch.clamp(straight_through_round(tiles / scale[:, None] - o), low, high)
    return (q + o) * scale[:, None]


def parameters(minimum, maximum, symmetric, low, high):
    if symmetric:
        return torch.maximum(minimum.abs() / -low, maximum.abs() / high), torch.zeros_like(minimum)
    scale = (maximum - minimum) / (high - low)
    return scale, minimum / scale - low


def grid(tiles, symmetric, low, high, p):
    minimum, maximum = tiles.min(1).values, tiles.max(1).values
    largest = torch.maximum(minimum.abs(), maximum.abs())
    if symmetric:
        ranges = [(-f * largest, f * largest) for f in torch.linspace(0.01, 1, 100, dtype=torch.float64).flip(0)]
    else:
        fractions = torch.linspace(1, 0.6, 10, dtype=torch.float64)
        ranges = [(a * minimum, b * maximum) for a in fractions for b in fractions]
    candidates = [parameters(a, b, symmetric, low, high) for a, b in ranges]
    errors = torch.stack([(quantize(tiles, s, o, low, high) - tiles).abs().pow(p).sum(1) for s, o in candidates])
    best = errors.argmin(0)
    pick = lambda values: torch.stack(values)[best, torch.arange(len(best))]  # noqa: E731
    return pick([s for s, _ in candidates]), pick([o for _, o in candidates])


def away_from_ties(x, scale, offset):
    u = x / scale[:, None] - offset.round()[:, None]
    distance = (u - u.floor() - 0.5)
    return torch.where(distance.abs() < 1e-3, x + 4e-3 * scale[:, None], x)


def main():
    out = {}
    torch.manual_seed(5)
    for name, (bits, symmetric, group, rows, cols) in CASES.items():
        low, high = -2 ** (bits - 1), 2 ** (bits - 1) - 1
        # Long tails, a mean of its own for each row, float32 numbers.
        x = torch.randn(rows, cols).pow(3) + 0.3 * torch.randn(rows, 1)
        g = torch.randn(rows, cols).double()
        tiles = tiles_of(x.double(), group)
        scale, offset = parameters(tiles.min(1).values, tiles.max(1).values, symmetric, low, high)
        scale, offset = (0.35 * scale).float().double(), offset.float().double()
        if not symmetric:
            offset = (offset + 0.3 * torch.randn(len(offset)).double()).float().double()
        tiles = away_from_ties(tiles, scale, offset).float().double()
        x = tiles.reshape(rows, cols)
        leaf = x.clone().requires_grad_(True)
        s, o = scale.clone().requires_grad_(True), offset.clone().requires_grad_(True)
        y = quantize(tiles_of(leaf, group), s, o, low, high).reshape(rows, cols)
        y.backward(g)
        clipped = (leaf.grad == 0).double().mean().item()
        assert 0.01 < clipped < 0.6, (name, clipped)
        values = {"x": x, "g": g, "scale": scale, "y": y, "dx": leaf.grad, "dscale": s.grad}
        if not symmetric:
            values |= {"offset": offset, "doffset": o.grad}
        found = {"minmax": parameters(tiles.min(1).values, tiles.max(1).values, symmetric, low, high),
                 "grid2": grid(tiles, symmetric, low, high, 2), "grid3": grid(tiles, symmetric, low, high, 3)}
        values["dynamic"] = quantize(tiles, *found["minmax"], low, high).reshape(rows, cols)
        for key, (a, b) in found.items():
            values[key + "_scale"] = a
            if not symmetric:
                values[key + "_offset"] = b
        for key, value in values.items():
            out[f"{name}.{key}"] = value.detach().float().contiguous()
        out[f"{name}.spec"] = torch.tensor([low, high, int(symmetric), group], dtype=torch.int32)
    save_file(out, (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE) / "fake_quant.safetensors")


if __name__ == "__main__":
    main()
