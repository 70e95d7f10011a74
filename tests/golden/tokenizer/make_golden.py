"""Golden token ids.

    python make_golden.py --data DIR --qwen MODEL.gguf --smollm MODEL.gguf

DIR is the folder of public data (qwen2_vocab.json, qwen2_merges.txt and smollm_tokenizer.json under tokenizers/).
Made with Python 3.11, tokenizers 0.22.2, transformers 4.57.3, gguf 0.19.0. Writes, beside this file:

  components.json   a small vocabulary and tokenizer.json variations of every supported component, with ids
  real_models.json  ids of the tokenizers of the real models, to be compared with their GGUF files
"""

import argparse
import json
import os
import random
import unicodedata

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2TokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))

WORDS = ("the The we're I'LL it's 'S 'll 123 4567 12 \u0661\u0662 \u00bd na\u00efve re\u0301sume\u0301 caf\u00e9 "
         "\u4e2d\u6587 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u0939\u093f\u0928\u094d\u0926\u0940 def __init__(self): "
         "'\u017f '\u212a \u180e \u200b \u200d \ufeff \u2028 \x85 \xa0 \x1c \x00 \x7f ... !!! ??? -- => \\n \\t "
         "\U0001f680 \U0001f636\u200d\U0001f32b\ufe0f \U00031350 \U0001e4d0").split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", " \n ", "\n  ", "\t\t", "\u3000", "\xa0", "", "", ""]


def texts(seed, count, extra_words):
    """Texts that visit contractions, digits, white space of all kinds, marks out of order, and any assigned character."""
    rng = random.Random(seed)
    words = WORDS + extra_words
    assigned = [c for c in range(0x20, 0x31350) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    marks = [0x61, 0x65, 0x300, 0x301, 0x323, 0x327, 0x308, 0x1112, 0x1161, 0x11AB, 0xAC00, 0x915, 0x93C, 0x1E69]
    result = ["", "a", " ", "Hello world", " Hello  world", "x = 3.14159;\n\n\treturn x", "I'm sure you'd say we've"]
    while len(result) < count:
        kind = rng.random()
        n = rng.randint(1, 10)
        if kind < 0.5:
            result.append("".join(rng.choice(words) + rng.choice(SPACES) for _ in range(n)))
        elif kind < 0.65:
            result.append("".join(chr(rng.choice(assigned)) for _ in range(n)))
        elif kind < 0.8:
            result.append("".join(rng.choice(SPACES) for _ in range(n)) + rng.choice(words))
        else:
            result.append("".join(chr(rng.choice(marks)) for _ in range(n)))
    return result


def small_model():
    """A byte-level BPE vocabulary of 500 tokens, trained on a few sentences of our own."""
    corpus = ["the cat and the hat were there then", "counting 123 and 456, then 789: the end!", "we're there, aren't we?",
              "na\u00efve caf\u00e9 r\u00e9sum\u00e9 caf\u00e9s", "def function(self):\n        return self.value  # the value\n",
              "\u4e2d\u6587\u4e2d\u6587 \u4e2d\u56fd", "and   and    and\n\n\nand\t\tand", "user assistant system tool user user"] * 3
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())["model"]


def added(content, id, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": False}
    token.update(flags)
    return token


def split(pattern, behavior, invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=True, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def component_cases(model):
    n = len(model["vocab"])
    qwen = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+")
    cases = [
        ("byte_level", {}),
        ("prefix_space", {"pre_tokenizer": byte_level(add_prefix_space=True)}),
        ("no_regex", {"pre_tokenizer": byte_level(use_regex=False)}),
        ("nfc", {"normalizer": {"type": "NFC"}}),
        ("nfc_in_sequence", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}),
        ("digits_alone", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level())}),
        ("digits_in_runs", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level())}),
        ("digits_prefix_space", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True},
                                                           byte_level(add_prefix_space=True))}),
        ("qwen_pattern", {"pre_tokenizer": sequence(split(qwen, "Isolated"), byte_level(False))}),
        ("ignore_merges", {"pre_tokenizer": sequence(split(r"\s+|\S+", "Isolated"), byte_level(False)),
                           "model": {"ignore_merges": True}}),
        ("possessive", {"pre_tokenizer": sequence(split(r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]++|\p{L}++|\s", "Isolated"),
                                                  byte_level(False))}),
        ("literal", {"pre_tokenizer": sequence(split(" ", "MergedWithNext", literal=True), byte_level(False))}),
        ("two_splits", {"pre_tokenizer": sequence(split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", "Isolated"),
                                                  split(qwen, "Isolated"), byte_level(False))}),
        ("bos", {"post_processor": {"type": "Sequence", "processors": [byte_level(), {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]}}}]},
            "added_tokens": [added("<s>", n, special=True)]}),
    ]
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            cases.append((f"split_{behavior}_{'inverted' if invert else 'plain'}",
                          {"pre_tokenizer": sequence(split(r"\p{N}|,| ", behavior, invert), byte_level(False))}))
    # Added tokens: every flag, special and not (demands, rows 75 and 76).
    for name, flags in [("plain", {}), ("lstrip", {"lstrip": True}), ("rstrip", {"rstrip": True}),
                        ("both_strips", {"lstrip": True, "rstrip": True}), ("single_word", {"single_word": True}),
                        ("normalized", {"normalized": True})]:
        cases.append((f"added_{name}", {
            "normalizer": {"type": "NFC"},
            "added_tokens": [added("<|im_start|>", n, **flags), added("<|im_end|>", n + 1, special=True, **flags),
                             added("<think>", n + 2, **flags), added("<|im", n + 3, **flags),
                             added("the", model["vocab"]["the"], **flags), added("caf\u00e9", n + 4, **flags)]}))
    return cases


ADDED_WORDS = ["<|im_start|>", "<|im_start|>user", "<|im_end|>", "<|im_end", "<think>", "</think>", "<|im", "cafe\u0301",
               "<s>", "the<think>", "<|im_end|><|im_start|>"]
ADDED_TEXTS = ["<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", "<|im_start|> user", " <|im_start|> ", "a<think>b",
               "a <think> b", "<think>  <think>", "xthe the thex the", "\u00e9the the\u0301", "_the the-the", "<|im<|im_start",
               "  \u3000<|im_end|>\n\t x", "cafe\u0301 caf\u00e9", "<think>\n\n</think>\n\nthe", "12<think>34", "<|im_end|>the"]


def components():
    model = small_model()
    rows = texts(1, 28, ADDED_WORDS) + ADDED_TEXTS
    cases = []
    for name, parts in component_cases(model):
        document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                    "pre_tokenizer": byte_level(), "post_processor": None, "decoder": byte_level(), "model": model}
        document.update({k: v for k, v in parts.items() if k != "model"})
        document["model"] = {**model, **parts.get("model", {})}
        tokenizer = Tokenizer.from_str(json.dumps(document))
        case = {"name": name, "parts": parts, "rows": []}
        for text in rows:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            with_bos = tokenizer.encode(text, add_special_tokens=True).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            row = {"ids": ids}
            if plain != ids:
                row["plain"] = plain  # special tokens not parsed
            if with_bos != ids:
                row["bos"] = with_bos
            case["rows"].append(row)
        cases.append(case)
    return {"model": model, "texts": rows, "cases": cases}


def real_models(arguments):
    data = os.path.join(arguments.data, "tokenizers")
    reader = GGUFReader(arguments.qwen)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    qwen = Qwen2TokenizerFast(os.path.join(data, "qwen2_vocab.json"), os.path.join(data, "qwen2_merges.txt"))
    have = qwen.get_added_vocab()
    for id, type in enumerate(types):
        if type in (3, 4) and tokens[id] not in have:
            qwen.add_tokens([AddedToken(tokens[id], special=type == 3, normalized=False)], special_tokens=type == 3)
            assert qwen.convert_tokens_to_ids(tokens[id]) == id
    vocab = qwen.get_vocab()
    assert all(vocab[tokens[id]] == id for id, type in enumerate(types) if type != 5)

    smollm = Tokenizer.from_file(os.path.join(data, "smollm_tokenizer.json"))
    tokens = GGUFReader(arguments.smollm).fields["tokenizer.ggml.tokens"].contents()
    assert smollm.get_vocab() == {token: id for id, token in enumerate(tokens)}

    result = {}
    for name, tokenizer in [("qwen2.5-coder-0.5b", qwen.backend_tokenizer), ("smollm2-135m", smollm)]:
        words = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<|fim_prefix|>", "<repo_name>", "<think>"]
        rows = texts(2, 160, words) + ["<|im_start|>user\nWhat is 12*7?<|im_end|>\n<|im_start|>assistant\n"]
        result[name] = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in rows]
    return result


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as file:
        json.dump(value, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--data", "--qwen", "--smollm"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args()
    write("components.json", components())
    write("real_models.json", real_models(arguments))
