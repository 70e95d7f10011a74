#!/usr/bin/env python3
"""The table perplexity x speed x bytes: packing recipes of pith, and llama.cpp's points, for one model.

  bench/table.py --pith bin/pith --model qwen2.5-coder-0.5b --file wiki.test.raw.txt --out table.jsonl \\
                 --recipes stored w8 w4g32 w4g32m w4 w4,head=w4,method=lp,p=2 \\
                 --llama-bin llama.cpp/build/bin --llama-models own.gguf Q8_0.gguf Q4_0.gguf

Each point is one line of --out: what is there already is not measured again, so a broken run goes on where it stopped.
--steps chooses what to measure: ppl (perplexity; a busy machine does no harm) and speed (pp512 and tg128 as medians of
--rounds runs, points in turn, so that drift meets all of them). --print writes the table as Markdown.

Perplexity of llama.cpp is of its own tool, which scores the second half of each window; pith reports that too, and it is
the column for comparisons between the two.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def pith_perplexity(args, recipe):
    out = json.loads(run([args.pith, "ppl", "-m", args.model, "-w", recipe, "--file", args.file, "--ctx", str(args.ctx),
                          "--tokens", str(args.tokens), "-t", str(args.threads), "--json"]).stdout)
    return {key: out[key] for key in ("ppl", "late_ppl", "tokens", "window")}


def llama_perplexity(args, model):
    done = run([os.path.join(args.llama_bin, "llama-perplexity"), "-m", model, "-f", args.file, "-c", str(args.ctx),
                "--chunks", str(args.tokens // args.ctx), "-t", str(args.threads)])
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if not found:
        sys.exit(f"no perplexity in the output of llama-perplexity for {model}")
    return {"late_ppl": float(found[1]), "tokens": args.tokens, "window": args.ctx}


def pith_speed(args, recipe):
    out = json.loads(run([args.pith, "bench", "-m", args.model, "-w", recipe, "-t", str(args.threads), "-r", "1",
                          "--only", "pp512", "tg128", "--json"]).stdout)
    rates = {row["test"]: row["median_tokens_per_second"] for row in out["rows"]}
    return {"pp512": rates["pp512"], "tg128": rates["tg128"], "bytes": out["file_bytes"]}


def llama_speed(args, model):
    rows = json.loads(run([os.path.join(args.llama_bin, "llama-bench"), "-m", model, "-t", str(args.threads), "-r", "1",
                           "-p", "512", "-n", "128", "-o", "json"]).stdout)
    return {"pp512": next(row["avg_ts"] for row in rows if row["n_prompt"] == 512),
            "tg128": next(row["avg_ts"] for row in rows if row["n_gen"] == 128), "bytes": os.path.getsize(model)}


def load(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def save(path, record):
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def table(records, model):
    points = {}
    for record in records:
        if record["model"] != model:
            continue
        point = points.setdefault((record["program"], record["weights"]), {"pp512": [], "tg128": []})
        for key, value in record.items():
            if key in ("pp512", "tg128"):
                point[key].append(value)
            else:
                point[key] = value
    print(f"| {model} | perplexity | 2nd halves | pp512 | tg128 | MB |\n|---|---|---|---|---|---|")
    for (program, weights), point in points.items():
        def figure(key, form):
            value = point.get(key)
            if isinstance(value, list):
                value = statistics.median(value) if value else None
            return "" if value is None else form % value
        size = "" if "bytes" not in point else "%.0f" % (point["bytes"] / 1e6)
        print(f"| {program} {weights} | {figure('ppl', '%.2f')} | {figure('late_ppl', '%.2f')} | {figure('pp512', '%.0f')} "
              f"| {figure('tg128', '%.1f')} | {size} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pith", default="bin/pith")
    parser.add_argument("--model", required=True)
    parser.add_argument("--recipes", nargs="*", default=[])
    parser.add_argument("--llama-bin", help="folder of llama-perplexity and llama-bench")
    parser.add_argument("--llama-models", nargs="*", default=[], help="GGUF files of the same model")
    parser.add_argument("--file", help="text of the perplexity")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", nargs="*", default=["ppl", "speed"], choices=["ppl", "speed"])
    parser.add_argument("--out", required=True)
    parser.add_argument("--print", action="store_true")
    args = parser.parse_args()

    points = [("pith", recipe) for recipe in args.recipes] + [("llama.cpp", path) for path in args.llama_models]
    if "ppl" in args.steps:
        for program, weights in points:
            key = {"model": args.model, "program": program, "weights": os.path.basename(weights)}
            if any(all(record.get(name) == value for name, value in key.items()) and "late_ppl" in record
                   for record in load(args.out)):
                continue
            measured = pith_perplexity(args, weights) if program == "pith" else llama_perplexity(args, weights)
            save(args.out, key | measured)
            print(key["weights"], measured, file=sys.stderr, flush=True)
    if "speed" in args.steps:
        for _ in range(args.rounds):
            for program, weights in points:
                key = {"model": args.model, "program": program, "weights": os.path.basename(weights)}
                measured = pith_speed(args, weights) if program == "pith" else llama_speed(args, weights)
                save(args.out, key | measured)
                print(key["weights"], measured, file=sys.stderr, flush=True)
    if args.print:
        table(load(args.out), args.model)


if __name__ == "__main__":
    main()
