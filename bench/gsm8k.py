#!/usr/bin/env python3
"""A quick check that a packed model still reasons: GSM8K problems, greedy, answer in a box.

  bench/gsm8k.py --pith bin/pith --model qwen2.5-coder-0.5b --data ../shared/data/eval/gsm8k_test.jsonl --count 60

Prints how many of the first `count` problems are right (the last \\boxed{...} of the answer, as a number), the mean number of generated
tokens and how many answers had a box. Grading proper is not this script's job.
"""
import argparse
import json
import re
import shlex
import subprocess
import sys


def number(text):
    text = re.sub(r"\\text\{[^}]*\}|\\[,!; ]|[\s$,%]|\\\$", "", text)
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    return float(match.group()) if match else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pith", default="bin/pith")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--data", required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=640)
    parser.add_argument("--pith-args", default="")
    args = parser.parse_args()
    with open(args.data, encoding="utf-8") as file:
        problems = [json.loads(line) for line in file][: args.count]
    right = boxed = tokens = 0
    for i, problem in enumerate(problems):
        question = problem["problem"] + "\nPlease reason step by step, and put your final answer within \\boxed{}."
        command = [args.pith, "ask", "-m", args.model, "--json", "--temp", "0", "--max-tokens", str(args.max_tokens)]
        done = subprocess.run(command + shlex.split(args.pith_args) + [question], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr or done.stdout)
        answer = json.loads(done.stdout)
        boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", answer["text"])
        boxed += bool(boxes)
        tokens += answer["usage"]["completion_tokens"]
        right += bool(boxes) and number(boxes[-1]) == number(str(problem["answer"]))
        print(f"\r{i + 1}/{len(problems)}: {right} right", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(json.dumps({"right": right, "of": len(problems), "mean_tokens": tokens / len(problems), "boxed": boxed}))


if __name__ == "__main__":
    main()
