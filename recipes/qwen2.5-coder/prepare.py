#!/usr/bin/env python3
"""Chooses the problems of each stage: prepare.py DATA OUT [--scale S].

DATA has train/train_gsm8k.jsonl, train/train_math.jsonl, train/train_mawps.jsonl (rows with id, problem, answer; MATH also with level) and
chat/*.jsonl (rows with an instruction or a prompt). No file of an evaluation is read. Every problem serves one stage only: what the
adapter has seen says nothing about the verifier. --scale 0.01 takes a hundredth of everything.

Written to OUT: distill.jsonl, grpo.jsonl, verifier.jsonl (problems), direct.jsonl and reasoned.jsonl (for the switcher).
"""
import argparse
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
    for name in ("self_instruct_user_oriented.jsonl", "self_instruct_seed_tasks.jsonl", "mt_bench.jsonl"):
        path = os.path.join(folder, "chat", name)
        if not os.path.exists(path):
            continue
        for index, row in enumerate(rows(path)):
            if row.get("category") in ("math", "reasoning", "coding"):
                continue
            text = row.get("instruction") or row.get("prompt") or (row.get("turns") or [""])[0]
            if isinstance(text, list):
                text = text[0] if text else ""
            instances = row.get("instances") or [{}]
            given = instances[0].get("input", "") if isinstance(instances[0], dict) else ""
            text = (text + ("\n\n" + given if given else "")).strip()
            if 0 < len(text) < 1200:
                found.append({"id": f"{name}:{row.get('id', index)}", "problem": text})
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
    gsm8k = shuffled([problem(row) for row in rows(os.path.join(args.data, "train/train_gsm8k.jsonl"))], by_id)
    # Levels 1 to 3 with short answers: what a model of half a billion weights can hope to learn.
    math = shuffled([problem(row) for row in rows(os.path.join(args.data, "train/train_math.jsonl"))
                     if (row.get("level") or 9) <= 3 and re.fullmatch(r"-?[\d.,/]+|-?\\frac\{\d+\}\{\d+\}", row["answer"])], by_id)
    mawps = shuffled([problem(row) for row in rows(os.path.join(args.data, "train/train_mawps.jsonl"))], by_id)

    def take(pool, n):
        taken = pool[:count(n)]
        del pool[:count(n)]
        return taken

    write(os.path.join(args.out, "distill.jsonl"), shuffled(take(gsm8k, 1000) + take(math, 200), by_id))
    write(os.path.join(args.out, "grpo.jsonl"), shuffled(take(gsm8k, 2000) + take(math, 300), by_id))
    write(os.path.join(args.out, "verifier.jsonl"), shuffled(take(gsm8k, 800) + take(math, 200), by_id))
    write(os.path.join(args.out, "reasoned.jsonl"), shuffled(take(gsm8k, 350) + take(math, 250), by_id))
    # Problems of one step are on the direct side too, so that "has numbers in it" is not what the switcher learns.
    everyday = shuffled(chats(args.data), by_id)
    write(os.path.join(args.out, "direct.jsonl"), shuffled(take(everyday, 400) + take(mawps, 200), by_id))


if __name__ == "__main__":
    main()
