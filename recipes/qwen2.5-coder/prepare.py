#!/usr/bin/env python3
"""Chooses the problems of each stage: prepare.py DATA OUT [--scale S].

DATA has train/train_gsm8k.jsonl, train/train_math.jsonl, train/train_mawps.jsonl (rows with id, problem, answer; MATH also with level) and
chat/self_instruct_*.jsonl (rows with an instruction). What occurs in a file of eval/ too is left out: MAWPS holds much of MultiArith.
Every problem serves one stage only: what the adapter has seen says nothing about the verifier. --scale 0.01 takes a hundredth of everything.

Written to OUT: distill.jsonl, grpo.jsonl, verifier.jsonl (problems), direct.jsonl and reasoned.jsonl (for the switcher).
"""
import argparse
import glob
import hashlib
import json
import os
import re


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def shuffled(items, key):
    """By a hash of what they are: the same order everywhere, and no order of the source left."""
    return sorted(items, key=lambda row: hashlib.sha256(key(row).encode()).hexdigest())


def write(path, items):
    with open(path + ".part", "w", encoding="utf-8") as out:
        for item in items:
            out.write(json.dumps(item, ensure_ascii=False) + "\n")
    os.replace(path + ".part", path)
    print(f"{os.path.basename(path)}: {len(items)} rows")


def problem(row):
    return {"id": row["id"], "problem": row["problem"], "answer": row["answer"]}


def chats(folder):
    """Everyday requests: what people ask an assistant when they do not set it a problem."""
    found = []
    for name in ("self_instruct_user_oriented.jsonl", "self_instruct_seed_tasks.jsonl"):
        path = os.path.join(folder, "chat", name)
        if not os.path.exists(path):
            continue
        for index, row in enumerate(rows(path)):
            text = row["instruction"]
            instances = row.get("instances") or [{}]
            given = instances[0].get("input", "") if isinstance(instances[0], dict) else ""
            text = (text + ("\n\n" + given if given else "")).strip()
            if 0 < len(text) < 1200:
                found.append({"id": f"{name}:{row.get('id', index)}", "problem": text})
    return found


def words(text):
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def evaluated(folder):
    """The problems of all evaluations, to keep out of them."""
    found = set()
    for path in sorted(glob.glob(os.path.join(folder, "eval", "*.jsonl"))):
        found.update(words(row["problem"]) for row in rows(path))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    def count(n):
        return max(2, round(n * args.scale))

    by_id = lambda row: row["id"]
    held_out = evaluated(args.data)

    def pool(name, keep=lambda row: True):
        taken = [problem(row) for row in rows(os.path.join(args.data, "train", name)) if keep(row)]
        return shuffled([row for row in taken if words(row["problem"]) not in held_out], by_id)

    gsm8k = pool("train_gsm8k.jsonl")
    # Levels 1 to 3 with short answers: what a model of half a billion weights can hope to learn.
    math = pool("train_math.jsonl", lambda row: (row.get("level") or 9) <= 3 and
                re.fullmatch(r"-?[\d.,/]+|-?\\frac\{\d+\}\{\d+\}", row["answer"]))
    mawps = pool("train_mawps.jsonl")

    def take(rows_left, n):
        taken = rows_left[:count(n)]
        del rows_left[:count(n)]
        return taken

    write(os.path.join(args.out, "distill.jsonl"), shuffled(take(gsm8k, 1000) + take(math, 200), by_id))
    write(os.path.join(args.out, "grpo.jsonl"), shuffled(take(gsm8k, 2000) + take(math, 300), by_id))
    write(os.path.join(args.out, "verifier.jsonl"), shuffled(take(gsm8k, 800) + take(math, 200), by_id))
    write(os.path.join(args.out, "reasoned.jsonl"), shuffled(take(gsm8k, 350) + take(math, 250), by_id))
    # Problems of one step are on the direct side too, so that "has numbers in it" is not what the switcher learns.
    everyday = shuffled(chats(args.data), by_id)
    write(os.path.join(args.out, "direct.jsonl"), shuffled(take(everyday, 260) + take(mawps, 140), by_id))


if __name__ == "__main__":
    main()
