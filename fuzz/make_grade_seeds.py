#!/usr/bin/env python3
"""Seeds for fuzz_grade: fuzz/make_grade_seeds.py OUT_DIR [PAIRS.jsonl]

Without a file: the committed seeds (fuzz/corpus/grade), one of each form of answer. With a file of rows with `gold` and `pred`: one
seed a row, for a long run over pairs that are not part of the project:

    fuzz/make_grade_seeds.py SEEDS PAIRS.jsonl && bin/fuzz_grade SEEDS --runs 1000000 --seconds 100000
"""
import json
import sys
from pathlib import Path

PAIRS = [
    ("17", "The answer is 17.0"),
    ("\\frac{3}{4}", "$\\boxed{0.75}$ and $\\boxed{2\\frac13}$"),
    ("35\\%", "**35 percent**"),
    ("12{,}345 \\text{ cm}^2", "It is 12,345 square cm"),
    ("\\{1, 2, \\sqrt[3]{5}\\}", "1, 2 \\text{ and } 5^{1/3}"),
    ("(-\\infty, 2] \\cup \\{3\\}", "x \\in (-\\infty,2]\\cup\\{3\\}"),
    ("-1 \\le 2x+1 < 5", "[-1, 2)"),
    ("x = 1, y = -2; x = 3, y = 4", "(x,y) = (1,-2) \\text{ or } (3,4)"),
    ("y = 2x^2 - \\frac{1}{x}", "2x^2 - 1/x"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "2\\begin{bmatrix} 0.5 & 1 \\\\ 1.5 & 2 \\end{bmatrix}"),
    ("3 \\pm 2\\sqrt{2}", "3+2\\sqrt2, 3-2\\sqrt2"),
    ("\\sin^2 \\theta + \\log_2 8 - |x!|", "3+\\sin(\\theta)^2-\\left|x!\\right|"),
    ("132_5", "12:30"),
    ("\\textbf{(B)}\\ 42", "The answer is B, since it can't be A"),
    ("no solution", "<think> \\boxed{4} </think>\nFinal Answer: The final answer is \\text{No solution}."),
    ("1,22", "0.\\overline{3} \\times 10^{-3} \\binom{5}{2} \\lfloor \\pi \\rfloor"),
    ("2^{2^{20}}", "9^{9^9} 4000! \\gcd(12, 18) e^{i\\pi} 90^\\circ"),
]


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    pairs = PAIRS
    if len(sys.argv) > 2:
        rows = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8") if line.strip()]
        pairs = [(row["gold"], row["pred"]) for row in rows]
    for index, (gold, pred) in enumerate(pairs):
        (out / f"{index:04d}").write_bytes(gold.encode() + b"\x1f" + pred.encode())


main()
