"""Trains a byte-level BPE tokenizer and writes tokenizer.json and tokenizer_config.json.

Words are split by a pattern first: letters, one digit at a time, other signs, each with the space before it. Merges
never cross a word, so digits stay single. Usage: bpe.py CORPUS.jsonl... --vocab 1024 --out DIR
"""

import argparse
import collections
import json
import os
import re

# The same pattern for Python's re (on ASCII text) and for the tokenizer file.
PYTHON_PATTERN = re.compile(r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
FILE_PATTERN = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>"]  # tokens, but not special: they are part of what a response says

CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
                 "{% endif %}")


def byte_alphabet():
    """The printable character that stands for each byte in files of byte-level BPE."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    alphabet, next_code = {}, 256
    for byte in range(256):
        if byte in printable:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(next_code)
            next_code += 1
    return alphabet


def texts(path):
    """Every text of a JSONL data set."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            for value in row.values():
                if isinstance(value, str):
                    yield value
                elif isinstance(value, list):
                    for message in value:
                        yield message["content"]


def count_words(paths, limit):
    words = collections.Counter()
    for path in paths:
        for number, text in enumerate(texts(path)):
            if number >= limit:
                break
            for part in re.split("|".join(map(re.escape, SPECIAL + TAGS)), text):
                words.update(PYTHON_PATTERN.findall(part))
    words.update({"system": 1, "user": 1, "assistant": 1})
    return words


def train(words, merges_wanted):
    """Merges in order: always the most frequent pair, ties by byte order."""
    alphabet = byte_alphabet()
    split = {word: [alphabet[b] for b in word.encode()] for word in words}
    merges = []
    while len(merges) < merges_wanted:
        pairs = collections.Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, parts in split.items():
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i:i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=40000, help="texts that are read of each file")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    alphabet = byte_alphabet()
    merges = train(count_words(args.corpus, args.limit), args.vocab - 256 - len(SPECIAL) - len(TAGS))
    vocab = {alphabet[byte]: i for i, byte in enumerate(sorted(range(256), key=lambda b: alphabet[b]))}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    added = [{"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": text in SPECIAL} for i, text in enumerate(SPECIAL + TAGS)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": FILE_PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": [f"{left} {right}" for left, right in merges]},
    }
    config = {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 2048, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
        "added_tokens_decoder": {str(token["id"]): {key: token[key] for key in (
            "content", "lstrip", "normalized", "rstrip", "single_word", "special")} for token in added},
    }
    os.makedirs(args.out, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=1)
            file.write("\n")
    print(f"{len(vocab) + len(added)} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()
