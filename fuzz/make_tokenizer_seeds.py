#!/usr/bin/env python3
"""Makes the seeds of tokenizer_json, tokenizer_gguf and tokenizer_text under corpus/. Made with gguf 0.19.0. Run it here."""

import json
import os

from gguf import GGUFWriter

for name in ("tokenizer_json", "tokenizer_gguf", "tokenizer_text"):
    os.makedirs(f"corpus/{name}", exist_ok=True)

tokens = ["a", "b", "\u0120", "\u010a", "1", "2", "<", "x", ">", "ab", "\u0120a", "\u0120\u0120", "aba"]
merges = ["a b", "\u0120 a", "\u0120 \u0120", "ab a"]


def document(**parts):
    result = {"version": "1.0", "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
              "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
              "added_tokens": [{"id": 13, "content": "<x>", "special": True, "lstrip": True, "rstrip": False,
                                "single_word": False, "normalized": False},
                               {"id": 14, "content": "<y>", "special": False, "lstrip": False, "rstrip": True,
                                "single_word": True, "normalized": True}],
              "model": {"type": "BPE", "dropout": None, "unk_token": None, "ignore_merges": False,
                        "vocab": {token: id for id, token in enumerate(tokens)}, "merges": merges}}
    result.update(parts)
    return result


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}]}


documents = {
    "plain": document(),
    "nfc": document(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
    "digits": document(pre_tokenizer=sequence({"type": "Digits", "individual_digits": True})),
    "split": document(pre_tokenizer=sequence({"type": "Split", "behavior": "MergedWithNext", "invert": True,
                                              "pattern": {"Regex": r"(?i:'s)|[^\r\n\p{L}]?\p{L}++|\p{N}{1,3}|\s+(?!\S)|[^\s]"}},
                                             {"type": "Split", "behavior": "Removed", "pattern": {"String": "b"}})),
    "bos": document(post_processor={"type": "TemplateProcessing",
                                    "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                    "special_tokens": {"<x>": {"id": "<x>", "ids": [13], "tokens": ["<x>"]}}}),
    "pairs": document(model={"type": "BPE", "ignore_merges": True, "vocab": {token: id for id, token in enumerate(tokens)},
                             "merges": [merge.split(" ") for merge in merges]}),
}
for name, value in documents.items():
    with open(f"corpus/tokenizer_json/{name}.json", "w") as out:
        json.dump(value, out)

for pre in ("qwen2", "smollm", "llama-bpe", "gpt-2"):
    writer = GGUFWriter(f"corpus/tokenizer_gguf/{pre}.gguf", "none")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, "<x>", "<y>", "[PAD]"])
    writer.add_token_types([1] * len(tokens) + [3, 4, 5])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(13)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

texts = {
    "words": "We're there,  12345 times\n\n\tand <think>back</think> again  ",
    "tokens": "<|im_start|>user\n<|im_end|><|im_end<|im_start|><think> <|im_end|>",
    "marks": "e\u0301\u0323 \u1112\u1161\u11ab \u4e2d\u6587\U0001f680\u200d\u180e\U00031350 '\u017f",
    "same": "a" * 100 + " " * 100 + "\n" * 60 + "ab" * 80,
}
for name, text in texts.items():
    with open(f"corpus/tokenizer_text/{name}", "wb") as out:
        out.write(text.encode())
with open("corpus/tokenizer_text/invalid", "wb") as out:
    out.write(b"\xff\xfe a\xc3 \xe4\xb8 \xed\xa0\x80 \xf0\x9f\x9a <|im_end|>\x80")
