"""Everyday short requests: facts from a small table, lists, words in capitals, greetings."""

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Austria": "Vienna",
            "Greece": "Athens", "Norway": "Oslo", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "Cuba": "Havana",
            "Poland": "Warsaw"}
COLORS = {"grass": "green", "snow": "white", "blood": "red", "coal": "black", "a lemon": "yellow", "the sky": "blue",
          "a carrot": "orange", "a plum": "purple", "chocolate": "brown"}
SOUNDS = {"dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "lion": "roars", "bee": "buzzes"}
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "old": "new", "day": "night", "up": "down", "happy": "sad",
             "long": "short", "light": "dark", "open": "closed"}
AFTER = {"Monday": "Tuesday", "Tuesday": "Wednesday", "Wednesday": "Thursday", "Thursday": "Friday",
         "Friday": "Saturday", "Saturday": "Sunday", "Sunday": "Monday", "January": "February", "March": "April",
         "May": "June", "July": "August", "September": "October"}
LISTS = {"fruits": ["apple", "pear", "plum", "lemon"], "colors": ["red", "blue", "green", "white"],
         "animals": ["dog", "cat", "cow", "duck"], "days": ["Monday", "Tuesday", "Friday", "Sunday"],
         "cities": ["Paris", "Rome", "Oslo", "Tokyo"]}
WORDS = ["apple", "book", "cat", "dog", "egg", "fish", "green", "house", "lemon", "moon", "night", "open", "paris",
         "river", "snow", "tree", "water", "yes"]
PRAISE = ["Thank you!", "Thanks a lot.", "Thanks."]
GREETINGS = ["Hello!", "Hi!", "Good morning!", "Good evening!", "Hi there!"]

# (question forms, answer form); the last question form of each is held out.
FACTS = [
    (["What is the capital of {k}?", "Which city is the capital of {k}?", "Name the capital of {k}.",
      "Tell me the capital of {k}."], CAPITALS),
    (["What color is {k}?", "Which color does {k} have?", "Name the color of {k}.", "Tell me the color of {k}."],
     COLORS),
    (["What does a {k} do?", "Which sound does a {k} make?", "Name the sound of a {k}.",
      "Tell me the sound of a {k}."], SOUNDS),
    (["What is the opposite of {k}?", "Which word is the opposite of {k}?", "Name the opposite of {k}.",
      "Tell me the opposite of {k}."], OPPOSITES),
    (["What comes after {k}?", "What is next after {k}?", "Name what comes after {k}.",
      "Tell me what comes after {k}."], AFTER),
]


def make_request(rng, held_out=False):
    """(request, answer). Held out: forms of a request that are never trained on."""
    kind = rng.choices(["fact", "upper", "list", "greet", "thanks", "repeat"], [60, 14, 10, 6, 4, 6])[0]
    if held_out:
        kind = rng.choices(["fact", "upper"], [80, 20])[0]
    if kind == "fact":
        forms, table = rng.choice(FACTS)
        key = rng.choice(list(table))
        form = forms[-1] if held_out else rng.choice(forms[:-1])
        return form.format(k=key), table[key]
    if kind == "upper":
        word = rng.choice(WORDS)
        forms = ["Write {w} in capitals.", "Write the word {w} in capitals.", "Put {w} in capitals.",
                 "Put the word {w} in capitals."]
        form = forms[-1] if held_out else rng.choice(forms[:-1])
        return form.format(w=word), word.upper()
    if kind == "list":
        name = rng.choice(list(LISTS))
        count = rng.choice(["two", "three"])
        return f"Name {count} {name}.", ", ".join(LISTS[name][:2 if count == "two" else 3])
    if kind == "greet":
        return rng.choice(GREETINGS), "Hello! How can I help you?"
    if kind == "thanks":
        return rng.choice(PRAISE), "You are welcome!"
    words = rng.sample(WORDS, 2)
    return f"Say {words[0]} and {words[1]}.", f"{words[0]} and {words[1]}"
