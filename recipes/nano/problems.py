"""Arithmetic word problems of 2-8 steps with their worked derivations.

A problem is a story: a number to begin with, then events that change it, then a question for the number at the end.
All numbers stay within 0..99. A derivation has one short sentence per event and ends with the box.

Held out are (a) stories: whole worlds whose words occur elsewhere, but never in such a story, and (b) numbers: the
pair (first number, first operand) of a problem decides by a hash whether it may be trained on.
"""

import dataclasses
import hashlib

LIMIT = 99

HE = ("he", "him", "his")
SHE = ("she", "her", "her")
NAMES = [("Tom", HE), ("Ben", HE), ("Leo", HE), ("Max", HE), ("Sam", HE), ("Paul", HE), ("Jack", HE), ("Omar", HE),
         ("Finn", HE), ("Noah", HE), ("Mia", SHE), ("Anna", SHE), ("Lucy", SHE), ("Emma", SHE), ("Zoe", SHE),
         ("Ida", SHE), ("Nora", SHE), ("Lily", SHE), ("Rosa", SHE), ("Sara", SHE)]
THINGS = ["apples", "books", "pens", "stamps", "cards", "shells", "marbles", "stickers", "cookies", "coins", "plums",
          "pears", "balls", "stones", "toys", "eggs", "cakes", "nuts", "flowers", "hats"]
ANIMALS = ["cows", "sheep", "hens", "goats", "ducks", "horses"]
PLACES = ["shelf", "table", "desk", "bench"]

# Events are (sentence, short form used in derivations). {n} is the operand.
# A world: openings, events per operation, questions. {p} person, {q} another person, {he} {him} {his}, {o} things.
PERSON = {
    "open": ["{p} has {n} {o}.", "{p} starts with {n} {o}.", "At first {p} has {n} {o}."],
    "+": [("{He} buys {n} more {o}.", "buys {n}"), ("{He} finds {n} {o}.", "finds {n}"),
          ("{He} buys {n} {o} in the shop.", "buys {n}"), ("{He} finds {n} {o} at the school.", "finds {n}"),
          ("{q} gives {him} {n} {o}.", "gets {n}"), ("{He} gets {n} {o} from {q}.", "gets {n}"),
          ("{He} wins {n} {o}.", "wins {n}")],
    "-": [("{He} gives {n} {o} to {q}.", "gives {n}"), ("{He} loses {n} {o}.", "loses {n}"),
          ("{He} sells {n} {o}.", "sells {n}"), ("{q} takes {n} of {his} {o}.", "loses {n}"),
          ("{He} gives away {n} {o}.", "gives {n}")],
    "*2": [("Then {he} doubles {his} {o}.", "doubles")],
    "*3": [("Then {he} triples {his} {o}.", "triples")],
    "/2": [("Then {he} gives away half of {his} {o}.", "half")],
    "ask": ["How many {o} does {p} have now?", "How many {o} does {p} have in the end?", "How many {o} are left?"],
}
PLACE = {
    "open": ["There are {n} {o} on the {l}.", "At first there are {n} {o} on the {l}."],
    "+": [("{q} puts {n} more {o} on the {l}.", "puts {n}"), ("{p} adds {n} {o}.", "adds {n}"),
          ("{p} brings {n} {o}.", "brings {n}")],
    "-": [("{q} takes {n} {o} from the {l}.", "takes {n}"), ("{n} {o} fall down.", "fall {n}"),
          ("{p} takes away {n} {o}.", "takes {n}")],
    "*2": [("Then the number of {o} doubles.", "doubles")],
    "*3": [("Then the number of {o} triples.", "triples")],
    "/2": [("Then half of the {o} are sold.", "half")],
    "ask": ["How many {o} are on the {l} now?", "How many {o} are there in the end?", "How many {o} are left?"],
}
BUS = {
    "open": ["There are {n} people on the bus.", "A bus starts with {n} people."],
    "+": [("{n} people get on.", "get on {n}"), ("At the next stop {n} more people get on.", "get on {n}")],
    "-": [("{n} people get off.", "get off {n}"), ("At the next stop {n} people get off.", "get off {n}")],
    "*2": [("Then the number of people doubles.", "doubles")],
    "*3": [("Then the number of people triples.", "triples")],
    "/2": [("Then half of the people get off.", "half")],
    "ask": ["How many people are on the bus now?", "How many people are on the bus in the end?"],
}
MONEY = {
    "open": ["{p} has {n} euros.", "{p} starts with {n} euros."],
    "+": [("{He} earns {n} euros.", "earns {n}"), ("{q} pays {him} {n} euros.", "gets {n}"),
          ("{He} saves {n} more euros.", "saves {n}")],
    "-": [("{He} spends {n} euros.", "spends {n}"), ("{He} pays {n} euros for a book.", "pays {n}"),
          ("{He} gives {q} {n} euros.", "gives {n}")],
    "*2": [("Then {he} doubles {his} money.", "doubles")],
    "*3": [("Then {he} triples {his} money.", "triples")],
    "/2": [("Then {he} spends half of {his} money.", "half")],
    "ask": ["How many euros does {p} have now?", "How much money is left?"],
}
FARM = {
    "open": ["A farm has {n} {a}.", "There are {n} {a} on the farm."],
    "+": [("The farmer buys {n} more {a}.", "buys {n}"), ("{n} {a} are born.", "born {n}"),
          ("{p} brings {n} {a}.", "brings {n}")],
    "-": [("The farmer sells {n} {a}.", "sells {n}"), ("{n} {a} run away.", "run {n}"),
          ("{p} takes {n} {a}.", "takes {n}")],
    "*2": [("Then the number of {a} doubles.", "doubles")],
    "*3": [("Then the number of {a} triples.", "triples")],
    "/2": [("Then half of the {a} are sold.", "half")],
    "ask": ["How many {a} does the farm have now?", "How many {a} are left?"],
}
TANK = {
    "open": ["A tank holds {n} liters of water.", "There are {n} liters of water in the tank."],
    "+": [("{p} adds {n} liters.", "adds {n}"), ("{n} liters flow in.", "in {n}")],
    "-": [("{p} takes {n} liters.", "takes {n}"), ("{n} liters flow out.", "out {n}"),
          ("The farmer uses {n} liters.", "uses {n}")],
    "*2": [("Then the water doubles.", "doubles")],
    "*3": [("Then the water triples.", "triples")],
    "/2": [("Then half of the water is used.", "half")],
    "ask": ["How many liters are in the tank now?", "How many liters are left?"],
}
# Held out: no training story is like these, but every word of theirs occurs in some other story.
SCHOOL = {
    "open": ["There are {n} people in the school."],
    "+": [("{n} more people get in.", "get on {n}"), ("{p} brings {n} people.", "brings {n}")],
    "-": [("{n} people run away.", "run {n}"), ("{q} takes away {n} people.", "takes {n}")],
    "*2": [("Then the number of people doubles.", "doubles")],
    "*3": [("Then the number of people triples.", "triples")],
    "/2": [("Then half of the people get off.", "half")],
    "ask": ["How many people are left in the end?"],
}
SHOP = {
    "open": ["A shop has {n} {o}.", "At first there are {n} {o} in the shop."],
    "+": [("The shop buys {n} {o}.", "buys {n}"), ("{p} brings {n} {o}.", "brings {n}"),
          ("The shop gets {n} more {o} from {q}.", "gets {n}")],
    "-": [("The shop sells {n} {o}.", "sells {n}"), ("The shop loses {n} {o}.", "loses {n}"),
          ("{q} takes {n} {o} from the shop.", "takes {n}")],
    "*2": [("Then the shop doubles the number of {o}.", "doubles")],
    "*3": [("Then the shop triples the number of {o}.", "triples")],
    "/2": [("Then the shop sells half of the {o}.", "half")],
    "ask": ["How many {o} does the shop have now?", "How many {o} are left?"],
}
WORLDS = {"person": PERSON, "place": PLACE, "bus": BUS, "money": MONEY, "farm": FARM, "tank": TANK}
WEIGHTS = {"person": 5, "place": 3, "bus": 1, "money": 2, "farm": 1, "tank": 1, "chain": 3}
HELD_OUT_WORLDS = {"school": SCHOOL, "shop": SHOP}

# A chain of people, each compared with the one before; its sentences name the person that the derivation names.
CHAIN = {
    "+": ["{p} has {n} more {o} than {q}.", "{p} has {n} {o} more than {q}."],
    "-": ["{p} has {n} fewer {o} than {q}.", "{p} has {n} {o} less than {q}."],
    "*2": ["{p} has twice as many {o} as {q}."],
    "*3": ["{p} has three times as many {o} as {q}."],
    "/2": ["{p} has half as many {o} as {q}."],
}


@dataclasses.dataclass
class Step:
    label: str  # "buys 7"
    a: int
    op: str  # "+", "-", "*2", "*3", "/2"
    n: int  # the operand; 2 or 3 for the others
    result: int

    def equation(self):
        sign = {"+": "+", "-": "-", "*2": "*", "*3": "*", "/2": "/"}[self.op]
        return f"{self.a} {sign} {self.n} = {self.result}"

    def inverse(self):
        """The equation that checks this one."""
        if self.op == "+":
            return f"{self.result} - {self.n} = {self.a}"
        if self.op == "-":
            return f"{self.result} + {self.n} = {self.a}"
        if self.op == "/2":
            return f"{self.result} * 2 = {self.a}"
        return f"{self.result} / {self.n} = {self.a}"


@dataclasses.dataclass
class Problem:
    text: str
    start: int
    steps: list
    world: str

    @property
    def answer(self):
        return self.steps[-1].result


def held_out_numbers(start, op, n):
    """Whether (first number, first operation, first operand) is never trained on: about one pair in eight."""
    digest = hashlib.sha256(f"nano {start} {op} {n}".encode()).digest()
    return digest[0] < 32


def draw_numbers(rng, count, held_out):
    """Start and (op, n, result) of `count` steps whose first pair is held out or not, as asked."""
    while True:
        start = rng.randint(2, 30)
        value, steps = start, []
        while len(steps) < count:
            op = rng.choices(["+", "-", "*2", "*3", "/2"], [44, 40, 8, 3, 5])[0]
            n = {"*2": 2, "*3": 3, "/2": 2}.get(op) or rng.randint(2, 12 if rng.random() < 0.7 else 20)
            result = {"+": value + n, "-": value - n, "*2": value * 2, "*3": value * 3, "/2": value // 2}[op]
            if not 1 <= result <= LIMIT or (op == "/2" and value % 2):
                continue
            steps.append((value, op, n, result))
            value = result
        if held_out_numbers(start, steps[0][1], steps[0][2]) == held_out:
            return start, steps


def fill(text, person, other, thing, place, animal, n):
    name, (he, him, his) = person
    return text.format(p=name, q=other[0], he=he, He=he.capitalize(), him=him, his=his, o=thing, l=place, a=animal, n=n)


def make_problem(rng, steps_from=2, steps_to=8, held_out_stories=False, held_out_numbers=False):
    count = rng.randint(steps_from, steps_to)
    start, drawn = draw_numbers(rng, count, held_out_numbers)
    people = rng.sample(NAMES, min(count + 2, len(NAMES)))
    thing, place, animal = rng.choice(THINGS), rng.choice(PLACES), rng.choice(ANIMALS)
    worlds = HELD_OUT_WORLDS if held_out_stories else WORLDS
    weights = [WEIGHTS.get(name, 1) for name in worlds]
    if not held_out_stories:
        weights.append(WEIGHTS["chain"])
    world = rng.choices(list(worlds) + ([] if held_out_stories else ["chain"]), weights)[0]
    if world == "chain":
        sentences = [f"{people[0][0]} has {start} {thing}."]
        steps = []
        for i, (a, op, n, result) in enumerate(drawn):
            person, other = people[i + 1][0], people[i][0]
            sentences.append(rng.choice(CHAIN[op]).format(p=person, q=other, o=thing, n=n))
            steps.append(Step(person, a, op, n, result))
        sentences.append(f"How many {thing} does {people[count][0]} have?")
    else:
        forms = worlds[world]
        sentences = [fill(rng.choice(forms["open"]), people[0], people[1], thing, place, animal, start)]
        steps = []
        for a, op, n, result in drawn:
            sentence, label = rng.choice(forms[op])
            sentences.append(fill(sentence, people[0], rng.choice(people[1:]), thing, place, animal, n))
            steps.append(Step(label.format(n=n), a, op, n, result))
        sentences.append(fill(rng.choice(forms["ask"]), people[0], people[1], thing, place, animal, 0))
    return Problem(" ".join(sentences), start, steps, world)


def final(value):
    return f"The final answer is \\boxed{{{value}}}"


def concise(problem):
    """One sentence per event."""
    parts = [f"Start with {problem.start}."]
    parts += [f"{step.label}: {step.equation()}." for step in problem.steps]
    return " ".join(parts)


def wrong_result(rng, step):
    while True:
        wrong = step.result + rng.choice([-10, -2, -1, 1, 2, 10])
        if 0 <= wrong <= LIMIT:
            return wrong


def check(rng, step):
    """What a doubtful mind adds to a step."""
    form = rng.randrange(4)
    if form == 0:
        return f"Wait, let me check that: {step.inverse()}. Yes, that is right."
    if form == 1:
        return f"Let me check: {step.equation()}. Good."
    if form == 2:
        return f"Hmm, is that right? {step.inverse()}. Yes."
    return f"So now it is {step.result}. Is it? {step.equation()}. Yes, it is {step.result}."


def verbose(rng, problem, doubt, restate, again, errors=0.03):
    """A trace with re-checking. doubt: share of steps that are checked; restate: list the events first; again: how
    often all of it is done once more; errors: share of steps with a wrong first attempt that is found and corrected."""
    parts = []
    if restate:
        parts.append("Okay, let me read the problem again.")
        parts.append(f"It starts with {problem.start}.")
        parts.append("Then: " + ", ".join(step.label for step in problem.steps) + ".")
        parts.append("Let me go step by step.")
    parts.append(f"Start with {problem.start}.")
    for step in problem.steps:
        if rng.random() < errors:
            wrong = dataclasses.replace(step, result=wrong_result(rng, step))
            parts.append(f"{step.label}: {wrong.equation()}.")
            parts.append(f"Wait, that is wrong. It is {step.equation()}.")
        else:
            parts.append(f"{step.label}: {step.equation()}.")
        if rng.random() < doubt:
            parts.append(check(rng, step))
    for i in range(again):
        parts.append(f"So I get {problem.answer}." + (" Let me do it again to be sure." if i == 0 else
                                                      " Let me check it one more time."))
        parts.append(concise(problem))
        parts.append(f"Yes, {problem.answer} again.")
    return " ".join(parts)


def draw_verbose(rng, problem):
    """The habit of the verbose traces: mostly long, sometimes shorter."""
    kind = rng.random()
    if kind < 0.10:
        return verbose(rng, problem, doubt=0.1, restate=False, again=0)
    if kind < 0.30:
        return verbose(rng, problem, doubt=0.5, restate=rng.random() < 0.5, again=0)
    return verbose(rng, problem, doubt=0.75, restate=True, again=rng.choice([1, 1, 2]))


def apply(value, op, n):
    return {"+": value + n, "-": value - n, "*2": value * 2, "*3": value * 3, "/2": value // 2}[op]


def break_derivation(rng, problem):
    """The derivation with one error that is carried on, of the kinds that small models make: a wrong result, a number or
    an operation that the event does not have, an event left out. Returns it and what is wrong with it, in words; its
    answer is another one than the problem's."""
    while True:
        at = rng.randrange(len(problem.steps))
        kind = rng.choices(["result", "number", "operation", "missing"], [25, 40, 20, 15])[0]
        right = problem.steps[at]
        steps, value = [], problem.start
        for i, step in enumerate(problem.steps):
            op, n, label = step.op, step.n, step.label
            if i == at and kind == "missing":
                continue
            if i == at and kind == "number" and op in "+-":
                others = [other.n for other in problem.steps if other.n != n]
                n = rng.choice(others) if others and rng.random() < 0.6 else rng.randint(2, 20)
                label = label.replace(str(step.n), str(n))
            if i == at and kind == "operation" and op in "+-":
                op = "-" if op == "+" else "+"
            result = apply(value, op, n) + (rng.choice([-10, -2, -1, 1, 2, 10]) if i == at and kind == "result" else 0)
            steps.append(Step(label, value, op, n, result))
            value = result
        if steps and all(0 <= step.result <= LIMIT for step in steps) and steps[-1].result != problem.answer:
            fault = f"{right.label} is left out" if kind == "missing" else f"{right.label}: {right.equation()}"
            return dataclasses.replace(problem, steps=steps), fault
