#!/usr/bin/env python3
"""Runs the ONNX graphs of a folder that `pith export onnx` wrote, on a task that pith's engine has done too.

`pith verify-export` starts this program; it needs the Python packages onnxruntime and numpy:
    python3 -m venv ~/.local/share/pith/onnx && ~/.local/share/pith/onnx/bin/pip install onnxruntime numpy

Usage: verify_onnx.py FOLDER TASK.safetensors OUT.json THREADS [BASE_FOLDER]
THREADS 0 leaves the number to ONNX Runtime. BASE_FOLDER holds graphs of the same model without the adapter.
The task holds the prompt, what the engine generated with the base and with the adapter, and the engine's logits, keys and
values. The graphs prefill the prompt in chunks with the adapter off, then decode token by token from the same cache, each
time the engine's own tokens, so that every step can be compared.
"""

import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    types = {"F32": np.float32, "I32": np.int32}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[8 + length + begin:8 + length + end], dtype=types[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors


class Graphs:
    """All parts of the model for one number of new tokens."""

    def __init__(self, folder, manifest, tokens, threads):
        self.tokens = tokens
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if manifest["scheme"] == "qdq":
            # Computes the pairs as they are written; fusing them goes wrong in 1.32 with opset 21.
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        self.parts = [
            ort.InferenceSession(str(folder / part["graphs"][str(tokens)]), options, providers=["CPUExecutionProvider"])
            for part in manifest["parts"]
        ]

    def run(self, feeds):
        results = {}
        for session in self.parts:
            wanted = {i.name: {**feeds, **results}[i.name] for i in session.get_inputs() if i.name in feeds or i.name in results}
            names = [o.name for o in session.get_outputs()]
            results.update(zip(names, session.run(names, wanted)))
        return results


class Model:
    """The graphs with a cache of places; a token may look at any set of places."""

    def __init__(self, folder, threads=0):
        self.folder = Path(folder)
        self.manifest = json.loads((self.folder / "pith-export.json").read_text())
        self.context = self.manifest["context"]
        self.threads = threads
        self.graphs = {}
        facts = self.manifest["model"]
        self.layers, self.kv_heads, self.head_dim = facts["layers"], facts["kv_heads"], facts["head_dim"]
        self.hidden = facts["hidden_size"]
        self.inv_freq = np.array(facts["rope_inv_freq"], dtype=np.float32)
        self.rope_factor = np.float32(facts["rope_factor"])

    def of(self, tokens):
        # One set of graphs at a time: each holds the weights.
        if tokens not in self.graphs:
            self.graphs.clear()
            self.graphs[tokens] = Graphs(self.folder, self.manifest, tokens, self.threads)
        return self.graphs[tokens]

    def new_cache(self):
        places = self.context - 1
        return {
            "k": np.zeros((self.layers, self.kv_heads, 1, self.head_dim, places), np.float32),
            "v": np.zeros((self.layers, self.kv_heads, 1, places, self.head_dim), np.float32),
            "length": 0,
        }

    def rope(self, positions):
        angles = np.asarray(positions, dtype=np.float32)[:, None] * self.inv_freq[None, :]
        return (np.cos(angles) * self.rope_factor)[None, None], (np.sin(angles) * self.rope_factor)[None, None]

    def step(self, tokens, ids, positions, cache, old_visible, new_visible, alpha, extra=None):
        """One call of the graphs for `tokens` rows. old_visible [rows, places], new_visible [rows, rows]: who sees what."""
        places = self.context - tokens
        mask = np.full((1, 1, tokens, self.context), self.manifest["mask_floor"], np.float32)
        mask[0, 0, :, :places][old_visible[:, :places]] = 0
        mask[0, 0, :, places:][new_visible] = 0
        cos, sin = self.rope(positions)
        feeds = {
            "input_ids": np.asarray(ids, np.int32)[None, :],
            "attention_mask": mask,
            "position_ids_cos": cos.astype(np.float32),
            "position_ids_sin": sin.astype(np.float32),
            "lora_alpha": np.array([alpha], np.float32),
        }
        for layer in range(self.layers):
            feeds[f"past_key_{layer}_in"] = np.ascontiguousarray(cache["k"][layer][..., :places])
            feeds[f"past_value_{layer}_in"] = np.ascontiguousarray(cache["v"][layer][:, :, :places])
        switcher = self.manifest.get("switcher")
        if switcher and switcher["chunk"] == tokens:  # whose outputs nobody asks for, unless `extra` does
            feeds["switcher_weights"] = np.zeros((1, tokens), np.float32)
            feeds["switcher_blend"] = np.zeros(1, np.float32)
            feeds["switcher_state_in"] = np.zeros((1, self.hidden), np.float32)
        feeds.update(extra or {})
        return self.of(tokens).run(feeds)

    def append(self, cache, results, rows):
        """Puts the keys and values of these rows behind those of the cache."""
        at = cache["length"]
        for layer in range(self.layers):
            cache["k"][layer][..., at:at + len(rows)] = results[f"past_key_{layer}_out"][..., rows]
            cache["v"][layer][:, :, at:at + len(rows)] = results[f"past_value_{layer}_out"][:, :, rows]
        cache["length"] += len(rows)

    def feed(self, tokens, ids, cache, alpha, extra=None):
        """Up to `tokens` new ids behind the cache; the rows in front of them are padding."""
        n, length = len(ids), cache["length"]
        pad = tokens - n
        padded = [0] * pad + list(ids)
        positions = [0] * pad + list(range(length, length + n))
        old = np.zeros((tokens, self.context), bool)
        old[pad:, :length] = True
        new = np.tril(np.ones((tokens, tokens), bool))
        new[:, :pad] = False
        new[:pad, :pad] = np.eye(pad, dtype=bool)
        results = self.step(tokens, padded, positions, cache, old, new, alpha, extra)
        self.append(cache, results, list(range(pad, tokens)))
        return results


class Comparison:
    def __init__(self):
        self.max = 0.0
        self.relative = 0.0
        self.same = 0
        self.steps = 0

    def add(self, got, want):
        difference = np.abs(got - want).max()
        self.max = max(self.max, float(difference))
        self.relative = max(self.relative, float(difference / want.std()))
        self.same += int(got.argmax() == want.argmax())
        self.steps += 1

    def json(self):
        return {"steps": self.steps, "same_choice": self.same, "max_difference": self.max, "relative": self.relative}


def copy(cache):
    return {"k": cache["k"].copy(), "v": cache["v"].copy(), "length": cache["length"]}


def prefill(model, prompt, out):
    manifest = model.manifest
    tokens = max(manifest["tokens"])
    cache = model.new_cache()
    switcher = manifest.get("switcher")
    state = np.zeros((1, model.hidden), np.float32)
    results = None
    for begin in range(0, len(prompt), tokens):
        ids = prompt[begin:begin + tokens]
        extra = {}
        if switcher and switcher["chunk"] == tokens:
            weights = np.zeros((1, tokens), np.float32)
            weights[0, tokens - len(ids):] = 1.0 / len(ids)
            blend = 1.0 if begin == 0 else switcher["alpha"]
            extra = {"switcher_weights": weights, "switcher_blend": np.array([blend], np.float32), "switcher_state_in": state}
        results = model.feed(tokens, ids, cache, 0.0, extra)
        state = results.get("switcher_state_out", state)
    if "switcher_score" in results:
        out["switcher_score"] = float(results["switcher_score"].ravel()[0])
    if "verifier_score" in results:
        out["verifier_score"] = float(results["verifier_score"].ravel()[-1])
    return cache, results["logits"][0, -1]


def decode(model, cache, ids, alpha):
    """Feeds ids one by one; returns the logits behind each."""
    return [model.feed(1, [token], cache, alpha)["logits"][0, -1] for token in ids]


def same_bits(a, b):
    return bool(np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32)))


def alpha_0_is_base(base, prompt, cache, logits, ids, decoded):
    """Whether graphs without the adapter give the same bits as those with it at alpha 0: keys, values and logits."""
    own, first = prefill(base, prompt, {})
    same = same_bits(first, logits) and same_bits(own["k"], cache["k"]) and same_bits(own["v"], cache["v"])
    if decoded:
        same = same_bits(decode(base, own, ids, 0.0), decoded) and same
    return same


def streams(model, cache, first_logits, alpha, count, steps):
    """`count` streams in one graph of `count` rows, against the same streams one at a time: the largest difference."""
    starts = np.argsort(-first_logits)[:count]
    prompt = cache["length"]
    alone = []
    for token in starts:
        own, rows = copy(cache), []
        for _ in range(steps):
            rows.append(model.feed(1, [int(token)], own, alpha)["logits"][0, -1])
            token = rows[-1].argmax()
        alone.append(rows)
    together = copy(cache)
    slots = [[] for _ in range(count)]
    tokens, worst, same = list(starts), 0.0, True
    for step in range(steps):
        old = np.zeros((count, model.context), bool)
        old[:, :prompt] = True
        for i in range(count):
            old[i, slots[i]] = True
        begin = together["length"]
        results = model.step(count, tokens, [prompt + step] * count, together, old, np.eye(count, dtype=bool), alpha)
        model.append(together, results, list(range(count)))
        for i in range(count):
            slots[i].append(begin + i)
            got, want = results["logits"][0, i], alone[i][step]
            worst = max(worst, float(np.abs(got - want).max() / want.std()))
            tokens[i] = int(got.argmax())
            same = same and tokens[i] == int(want.argmax())
    return {"streams": count, "steps": steps, "relative": worst, "same_text": same}


def main():
    folder, task_path, out_path, threads = sys.argv[1:5]
    start = time.time()
    task = read_safetensors(task_path)
    model = Model(folder, int(threads))
    manifest = model.manifest
    out = {"onnxruntime": ort.__version__}
    cache, logits = prefill(model, task["prompt"].tolist(), out)
    first = Comparison()
    first.add(logits, task["base.logits"][0])
    out["prefill"] = first.json()
    layers = []
    decoded = []
    length = cache["length"]
    for layer in range(model.layers):
        worst = 0.0
        for kind, part in (("keys", cache["k"][layer][:, 0, :, :length]), ("values", cache["v"][layer][:, 0, :length])):
            want = task[f"{kind}.{layer}"]
            worst = max(worst, float(np.abs(part - want).max() / np.abs(want).max()))
        layers.append(worst)
    out["layers"] = layers
    for mode, alpha in (("base", 0.0), ("adapter", 1.0)):
        if mode + ".ids" not in task or 1 not in manifest["tokens"]:
            continue
        comparison = Comparison()
        own = copy(cache)
        rows = decode(model, own, task[mode + ".ids"].tolist(), alpha)
        for got, want in zip(rows, task[mode + ".logits"][1:]):
            comparison.add(got, want)
        if mode == "base":
            decoded = rows
        out[mode] = comparison.json()
        # What the base makes of the prompt after this, adapter or not: the bits that are in the cache already. Nothing
        # that switching left behind makes another prompt of it.
        again, _ = prefill(model, task["prompt"].tolist(), {})
        out[mode]["prompt_kv_reused"] = same_bits(again["k"], cache["k"]) and same_bits(again["v"], cache["v"])
    middle = [n for n in manifest["tokens"] if 1 < n <= 16]
    if middle and 1 in manifest["tokens"]:
        count = middle[0]
        steps = min(8, (model.context - length) // count - 1)  # every stream takes a place of the cache at every step
        if steps > 0:
            out["streams"] = streams(model, cache, logits, 1.0 if "lora" in manifest else 0.0, count, steps)
    if len(sys.argv) > 5:
        model.graphs.clear()
        base = Model(sys.argv[5], int(threads))
        ids = task["base.ids"].tolist()
        out["alpha_0_is_base"] = alpha_0_is_base(base, task["prompt"].tolist(), cache, logits, ids, decoded)
    out["seconds"] = time.time() - start
    Path(out_path).write_text(json.dumps(out))


if __name__ == "__main__":
    main()
