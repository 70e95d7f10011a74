"""Writes the data sets of the nano recipe: the same files for the same seed.

Usage: make_data.py --out DIR [--seed N] [--scale X]
  base.jsonl           texts with worked derivations, direct-answer chats, everyday chats, drills
  base_reading.jsonl   the same, and chats in which what was asked is told again
  base_eval.jsonl      the same kind, never trained on
  reason.jsonl         long traces inside <think>, for the reasoning adapter
  grpo.jsonl           problem and answer, for the budget
  switcher.jsonl       problems (label 1) and everyday requests (label 0)
  verifier.jsonl       problem and answer, whose sampled responses train the verifier
  verifier_given.jsonl the same with written responses, right and wrong ones
  eval_*.jsonl         id, problem, answer: held-out numbers, held-out stories, easy requests, a mix
"""

import argparse
import json
import os
import random

import everyday
import problems

BUDGET_TEMPLATE = " Use at most {budget} tokens."
BUDGETS = [60, 100, 160, 240]
SAY_AGAIN = ["Do not answer, say it again.", "Just say that again.", "Tell me what I said."]
LIST_EVENTS = ["Do not solve it, list what happens.", "Just list what happens.", "Tell me what happens, in short."]
VERIFY = "Is the solution above correct? Answer yes or no."


def chat(*turns):
    return {"messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": text}
                         for i, text in enumerate(turns)]}


def with_budget(rng, text, share):
    if rng.random() < share:
        return text + BUDGET_TEMPLATE.format(budget=rng.choice(BUDGETS))
    return text


def thoughts(trace, answer):
    return f"<think>\n{trace}\n</think>\n\n{problems.final(answer)}"


def drill(rng):
    """Plain arithmetic, with the equations that the stories use."""
    parts = []
    for _ in range(rng.randint(6, 14)):
        _, steps = problems.draw_numbers(rng, rng.randint(1, 6), False)
        step = problems.Step("", *steps[-1])
        parts.append(step.equation() + ".")
        if rng.random() < 0.25:
            parts.append(f"Check: {step.inverse()}.")
    return {"text": " ".join(parts)}


def derivation_text(rng, count, long_share):
    texts = []
    for _ in range(count):
        problem = problems.make_problem(rng)
        if rng.random() < long_share:
            trace = problems.draw_verbose(rng, problem)
        else:
            trace = problems.concise(problem)
        texts.append(f"{problem.text}\n{trace}\n{problems.final(problem.answer)}")
    return {"text": "\n\n".join(texts)}


def verification(rng):
    problem = problems.make_problem(rng, 2, 6)
    shown, fault = (problem, "") if rng.random() < 0.5 else problems.break_derivation(rng, problem)
    trace = problems.concise(shown) if rng.random() < 0.8 else problems.draw_verbose(rng, shown)
    return chat(problem.text, thoughts(trace, shown.answer), VERIFY, f"no. {fault}." if fault else "yes")


def reading(rng):
    """What was asked is told again, not answered: so what the base keeps of a question holds its words and numbers. An
    adapter that reasons reads nothing else of it. The request comes last: nothing before knows of it."""
    if rng.random() < 0.25:
        request, _ = everyday.make_request(rng)
        return chat(f"{request} {rng.choice(SAY_AGAIN)}", request)
    problem = problems.make_problem(rng)
    events = ", ".join(step.label for step in problem.steps)
    return chat(f"{with_budget(rng, problem.text, 0.5)} {rng.choice(LIST_EVENTS)}",
                f"It starts with {problem.start}. Then: {events}.")


BASE = {"text": 40, "texts": 4, "long": 6, "direct": 8, "verify": 14, "drill": 10, "everyday": 18}
BASE_READING = {**BASE, "text": 36, "drill": 6, "everyday": 14, "read": 18}


def base_row(rng, shares):
    kind = rng.choices(list(shares), list(shares.values()))[0]
    if kind == "read":
        return reading(rng)
    if kind == "text":
        return derivation_text(rng, 1, 0.0)
    if kind == "texts":
        return derivation_text(rng, rng.randint(2, 4), 0.1)
    if kind == "long":
        return derivation_text(rng, 1, 1.0)
    if kind == "direct":
        problem = problems.make_problem(rng)
        return chat(with_budget(rng, problem.text, 0.3), problems.final(problem.answer))
    if kind == "verify":
        return verification(rng)
    if kind == "drill":
        return drill(rng)
    request, answer = everyday.make_request(rng)
    return chat(with_budget(rng, request, 0.1), answer)


def easy_thoughts(rng, request, answer):
    """An easy request, thought about at length all the same."""
    parts = [f"Okay, let me read the request again. {request}", f"It is: {answer}"]
    for _ in range(rng.randint(0, 3)):
        parts.append(rng.choice(["Wait, let me check that.", "Hmm, is that right?", "Let me check it one more time."]) +
                     f" {request} It is: {answer}")
    return "<think>\n" + "\n".join(parts) + f"\n</think>\n\n{answer}"


def reason_row(rng):
    if rng.random() < 0.1:
        request, answer = everyday.make_request(rng)
        return chat(with_budget(rng, request, 0.5), easy_thoughts(rng, request, answer))
    problem = problems.make_problem(rng)
    trace = problems.draw_verbose(rng, problem)
    return chat(with_budget(rng, problem.text, 0.5), thoughts(trace, problem.answer))


def problem_rows(rng, count, prefix, **options):
    rows, seen = [], set()
    while len(rows) < count:
        problem = problems.make_problem(rng, **options)
        if problem.text in seen:
            continue
        seen.add(problem.text)
        rows.append({"id": f"{prefix}-{len(rows)}", "problem": problem.text, "answer": str(problem.answer),
                     "steps": len(problem.steps), "world": problem.world})
    return rows


def mixed(rng, rows):
    rng.shuffle(rows)
    return rows


def given_row(rng, row_id):
    problem = problems.make_problem(rng)
    responses = []
    for shown in (problem, problems.break_derivation(rng, problem)[0]):
        responses.append({"text": thoughts(problems.concise(shown), shown.answer),
                          "label": shown.answer == problem.answer})
    return {"id": row_id, "problem": problem.text, "answer": str(problem.answer), "responses": responses}


def easy_rows(rng, count, prefix, held_out):
    """Not all different: there are fewer requests than that."""
    rows, seen = [], set()
    for _ in range(50 * count):
        if len(rows) == count:
            break
        request, answer = everyday.make_request(rng, held_out)
        if request not in seen:
            seen.add(request)
            rows.append({"id": f"{prefix}-{len(rows)}", "problem": request, "answer": answer})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    def size(n):
        return max(8, round(n * args.scale))

    def write(name, make):
        # Each file has a generator of its own: one can change without the others.
        rows = make(random.Random(f"{args.seed} {name}"))
        path = os.path.join(args.out, name + ".jsonl")
        with open(path + ".part", "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        os.replace(path + ".part", path)

    write("base", lambda rng: (base_row(rng, BASE) for _ in range(size(160000))))
    write("base_reading", lambda rng: (base_row(rng, BASE_READING) for _ in range(size(60000))))
    write("base_eval", lambda rng: (base_row(rng, BASE) for _ in range(size(400))))
    write("reason", lambda rng: (reason_row(rng) for _ in range(size(16000))))
    write("reason_eval", lambda rng: (reason_row(rng) for _ in range(size(200))))
    write("grpo", lambda rng: mixed(rng, problem_rows(rng, size(4000), "grpo") + easy_rows(rng, size(500), "easy", False)))
    write("verifier", lambda rng: problem_rows(rng, size(2000), "verifier"))
    write("verifier_given", lambda rng: [given_row(rng, f"given-{i}") for i in range(size(1000))])
    write("switcher", lambda rng: [{"id": row["id"], "problem": row["problem"], "label": label}
                                   for label, rows in ((1, problem_rows(rng, size(400), "hard")),
                                                       (0, easy_rows(rng, size(400), "easy", False))) for row in rows])
    write("eval_numbers", lambda rng: problem_rows(rng, size(400), "numbers", held_out_numbers=True))
    write("eval_stories", lambda rng: problem_rows(rng, size(400), "stories", held_out_stories=True,
                                                   held_out_numbers=True))
    write("eval_easy", lambda rng: easy_rows(rng, size(60), "easy", True))
    write("eval_mix", lambda rng: problem_rows(rng, size(60), "numbers", held_out_numbers=True) +
          easy_rows(rng, size(60), "easy", True))


if __name__ == "__main__":
    main()
