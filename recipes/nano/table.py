"""Prints the evaluations of the nano recipe as Markdown. Usage: table.py OUT/eval"""

import json
import os
import sys


def percent(share):
    return f"{100 * share:.1f}"


def interval(rate):
    return f"{percent(rate['value'])} ({percent(rate['low'])}-{percent(rate['high'])})"


def main():
    folder = sys.argv[1]
    runs = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "summary.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                runs[name] = json.load(file)

    print("| run | reasoning | cap | problems | accuracy % | mean tokens | forced % | majority % | weighted % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, run in runs.items():
        for row in run["results"]:
            several = row["streams"] > row["questions"]
            votes = [interval(row[kind]) if several and row.get(kind) else "" for kind in ("majority", "weighted")]
            print(f"| {name} | {row['mode']} | {row['cap']} | {row['problems']} | {interval(row['accuracy'])} | "
                  f"{row['tokens']['mean']:.0f} | {percent(row['forced_share'])} | {votes[0]} | {votes[1]} |")
    for name, run in runs.items():
        for curve in run["vote_curves"]["curves"]:
            print(f"\nVotes, {name}: {json.dumps(curve)}")
    for name, run in runs.items():
        for sweep in run["threshold_sweeps"]:
            print(f"\nSwitcher, {name}, cap {sweep['cap']}\n\n| threshold | routed % | accuracy % | mean tokens |")
            print("|---|---|---|---|")
            for point in sweep["points"]:
                print(f"| {point['threshold']:.3f} | {percent(point['routed_share'])} | {percent(point['accuracy'])} | "
                      f"{point['mean_tokens']:.0f} |")


if __name__ == "__main__":
    main()
