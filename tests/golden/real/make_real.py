#!/usr/bin/env python3
"""Greedy continuations of real models by transformers, for the end-to-end parity test (format: ../README.md).

Made with: python 3.11, torch 2.9.1 (cpu), transformers 4.57.3, gguf 0.19.0.
Run: python make_real.py MODEL.gguf OUT.json

transformers dequantizes the GGUF file. Two variants are run, both with float32 arithmetic and eager attention:
  f32   weights as dequantized
  bf16  matrices (linears, embedding, LM head) rounded to bfloat16; norms and biases as they are
"""

import hashlib
import json
import pathlib
import re
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 64
TOP = 5

CONVERSATIONS = [
    [("user", "A baker makes 12 trays of 18 rolls each. He sells 7 dozen rolls in the morning and a third of the rest in "
              "the afternoon. How many rolls are left? Reason step by step.")],
    [("system", "You are a careful programmer."),
     ("user", "Write a Python function `median(values)` that returns the median of a list of numbers without sorting the "
              "caller's list. Add a docstring.")],
    [("user", "Explain in plain words, with at least two comparisons from daily life, why the sky is blue during the day and "
              "red in the evening. Take your time and be thorough.")],
    [("user", "Name three rivers in Europe."),
     ("assistant", "The Danube, the Rhine and the Loire."),
     ("user", "Tell me about the first of them in three long paragraphs: its source, the countries and capitals on its way, and "
              "its delta.")],
    [("user", "Schreibe eine kurze Geschichte über einen Leuchtturmwärter und seine Katze 🐈 im Winter.")],
]


def greedy(model, prompt_ids, stop_ids):
    ids, top_ids, top_logits = [], [], []
    cache = None
    step = torch.tensor([prompt_ids])
    with torch.no_grad():
        while len(ids) < NEW_TOKENS:
            out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            values, indices = out.logits[0, -1].topk(TOP)
            ids.append(int(indices[0]))
            top_ids.append(indices.tolist())
            top_logits.append([round(v, 5) for v in values.tolist()])
            if ids[-1] in stop_ids:
                break
            step = indices[:1][None]
    gaps = [round(row[0] - row[1], 5) for row in top_logits]
    return {"ids": ids, "gaps": gaps, "top_ids": top_ids, "top_logits": top_logits}


def digest(path):
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            sha.update(block)
    return sha.hexdigest()


def main():
    torch.set_num_threads(1)
    path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    stop_ids = {tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    prompts = []
    for turns in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompts.append({"messages": messages, "text": text, "prompt_ids": tokenizer(text, add_special_tokens=False).input_ids})

    for variant in ("f32", "bf16"):
        if variant == "bf16":
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 2:
                        parameter.copy_(parameter.to(torch.bfloat16))
        for prompt in prompts:
            start = time.time()
            prompt[variant] = greedy(model, prompt["prompt_ids"], stop_ids)
            prompt[variant]["text"] = tokenizer.decode(prompt[variant]["ids"])
            print(variant, len(prompt["prompt_ids"]), "+", len(prompt[variant]["ids"]), "tokens,",
                  f"{time.time() - start:.0f} s, smallest gap {min(prompt[variant]['gaps']):.4f}:", repr(prompt[variant]["text"]),
                  flush=True)

    result = {"file": path.name, "sha256": digest(path), "tool": "transformers 4.57.3, float32 arithmetic, eager attention",
              "prompts": prompts}
    text = json.dumps(result, ensure_ascii=False, indent=1)
    # One line per list of numbers: small and still readable in a diff.
    text = re.sub(r"\[[-\d.,\s]*\]", lambda m: re.sub(r"\s+", "", m.group()), text)
    out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
