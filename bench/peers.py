#!/usr/bin/env python3
"""Speed of pith against a peer's bench program on the same machine, in one run.

The two are run in turn, A B A B ..., so that drift of a shared machine meets both; the figure is the median of the ratios of
neighbouring runs. The peer is llama-bench of llama.cpp (or ik_llama.cpp, with --peer-args "-rtr 1").

  bench/peers.py --pith bin/pith --pith-model qwen2.5-coder-0.5b \\
                 --peer /path/to/llama-bench --peer-model model-Q4_0.gguf --threads 2 --rounds 5

Rows: pp512, tg128, tg128 at a depth. Exit status 1 when a program fails.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def pith_rate(args, row):
    name = {"pp": f"pp{args.prompt}", "tg": f"tg{args.generate}", "deep": f"tg{args.generate}@d{args.depth}"}[row]
    command = [args.pith, "bench", "-m", args.pith_model, "-t", str(args.threads), "-r", "1", "-p", str(args.prompt),
               "-n", str(args.generate), "-d", str(args.depth), "--only", name, "--json"] + shlex.split(args.pith_args)
    rows = run(command)["rows"]
    return rows[0]["median_tokens_per_second"]


def peer_rate(args, row):
    command = [args.peer, "-m", args.peer_model, "-t", str(args.threads), "-r", "1", "-o", "json"]
    command += {"pp": ["-p", str(args.prompt), "-n", "0"],
                "tg": ["-p", "0", "-n", str(args.generate)],
                "deep": ["-p", "0", "-n", str(args.generate), "-d", str(args.depth)]}[row]
    rows = run(command + shlex.split(args.peer_args))
    return rows[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pith", default="bin/pith")
    parser.add_argument("--pith-model", required=True)
    parser.add_argument("--pith-args", default="")
    parser.add_argument("--peer", required=True, help="path of the peer's llama-bench")
    parser.add_argument("--peer-model", required=True)
    parser.add_argument("--peer-args", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--rows", default="pp,tg", help="of pp, tg, deep")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    report = {}
    for row in args.rows.split(","):
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(pith_rate(args, row))
            theirs.append(peer_rate(args, row))
        ratios = [a / b for a, b in zip(ours, theirs)]
        report[row] = {"pith": ours, "peer": theirs, "pith_median": statistics.median(ours),
                       "peer_median": statistics.median(theirs), "ratio_median": statistics.median(ratios),
                       "ratio_min": min(ratios), "ratio_max": max(ratios)}
        if not args.json:
            r = report[row]
            print(f"{row:5} pith {r['pith_median']:8.1f} t/s   peer {r['peer_median']:8.1f} t/s   "
                  f"ratio {r['ratio_median']:.2f} ({r['ratio_min']:.2f}..{r['ratio_max']:.2f}, {args.rounds} pairs)", flush=True)
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
