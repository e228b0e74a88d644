"""The prompts of a load: random common words or real text, no two with the same beginning; and texts that repeat
themselves.

All chance comes from the seed.
"""

import random
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import Literal

from tools.bench.texts import KINDS

Text = Literal["random words", "code, prose, chats"]
WORDS: Text = "random words"
REAL: Text = "code, prose, chats"

_WORDS_TO_A_COMMA = 3
"""A list of plain words has fewer tokens than a text: with a comma after every third, 64 words are 85 tokens of the
default model, as many as in sentences."""


@cache
def common_words() -> tuple[str, ...]:
    """About 1,270 English words, each a single token in the vocabularies of common models, with few exceptions."""
    return tuple((files(__package__) / "words.txt").read_text(encoding="utf-8").split())


class Prompts:
    """Prompts in the order they are asked for; the same seed gives the same ones.

    The first word is another one in each of len(common_words()) prompts in a row, and the first two are never the same
    again before all pairs are used: nothing that keeps prompts finds one of them twice by accident.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
        self._first = self._shuffled()
        self._second = self._shuffled()
        self._n_given = 0
        self._kinds = cycle(KINDS)

    def of(self, n_words: int, text: Text = WORDS) -> str:
        """`n_words` words, at least 2, no space at the beginning. The kinds of real text come in turn."""
        assert n_words >= 2, n_words
        if text == WORDS:
            return in_sentences([*self._serial(), *self.words(n_words - 2)])
        return f"{' '.join(self._serial())}\n\n{next(self._kinds)(self.chance(), n_words - 2)}"

    def words(self, n_words: int) -> list[str]:
        """Words by chance alone: they follow a start that differs already."""
        return self._random.choices(common_words(), k=n_words)

    def chance(self) -> random.Random:
        """A generator of its own, for what else a scenario draws: lengths, times of arrival, seeds."""
        return random.Random(self._random.getrandbits(64))  # noqa: S311 - as above

    def _serial(self) -> tuple[str, str]:
        later, earlier = divmod(self._n_given, len(self._first))
        self._n_given += 1
        return self._first[earlier], self._second[(earlier + later) % len(self._second)]

    def _shuffled(self) -> list[str]:
        return self._random.sample(common_words(), k=len(common_words()))


def in_sentences(words: list[str]) -> str:
    """The words, a comma after every third."""
    return " ".join(f"{word}," if place % _WORDS_TO_A_COMMA == 0 else word for place, word in enumerate(words, start=1))


_CODE = '''\
class Account:
    """Money that belongs to one owner."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)

    def report(self):
        for kind, amount in self.history:
            print(kind, amount)
        print("balance", self.balance)
'''

_EDIT_AFTER = "self.owner = owner\n"
_ADDED_LINE = "        self.currency = None"

_PASSAGE = """\
The mill at the end of the lane had not turned for thirty years when Hannah bought it. The wheel was green with moss, \
the race was full of leaves, and swallows went in and out where the door had been. Her brother said that she had paid \
for a heap of stones. She answered that stones were what a mill is made of, and that the water had never stopped. In \
the first winter she cleared the race with a spade. In the second she cut new paddles from oak, one each evening, and \
hung them in the barn to dry. In the third spring the whole village stood on the bridge, and when she lifted the gate \
the wheel groaned, shook off its moss, and began to turn.
"""


_INSTRUCTIONS = """\
An agent keeps the models of a shop. It answers each task with one call of a tool, as JSON, and then with the class \
that it has written. It writes nothing else.
"""

_TURN = """
### Task
Add a model for each {name}, with its {first} and its {second}.

### Action
{{
  "tool": "write_file",
  "arguments": {{
    "path": "shop/models/{name}.py",
    "reason": "A {name} has a {first} and a {second}.",
    "overwrite": false
  }}
}}

class {title}:
    def __init__(self, {first}, {second}):
        self.{first} = {first}
        self.{second} = {second}

    def as_json(self):
        return {{"{first}": self.{first}, "{second}": self.{second}}}

### Result
{{"ok": true, "written": "shop/models/{name}.py"}}
"""

_ACTION = "### Action\n"


# A small model continues a repetition of its own accord, so that what follows is in the prompt already.


def growing(prompts: Prompts, common: str, n_turns: int, n_words: int) -> list[str]:
    """A conversation as it is sent again and again: each prompt is the one before with `n_words` words more, a question
    and its scripted answer; both sides get the same prompts."""
    said = f"{common} {' '.join(prompts.words(2))}"
    asked = []
    for _ in range(n_turns):
        said += f"\n\n{in_sentences(prompts.words(n_words))}."
        asked.append(said)
    return asked


def code_edit(prompts: Prompts) -> str:
    """The file twice, and the beginning of a third with a line more: the rest of it follows unchanged."""
    beginning = _CODE[: _CODE.index(_EDIT_AFTER) + len(_EDIT_AFTER)]
    return f"# {prompts.of(4)}\n\n{_CODE}\n\n{_CODE}\n\n{beginning}{_ADDED_LINE}"


def quotation(prompts: Prompts) -> str:
    """The passage twice, and its first words."""
    opening = " ".join(_PASSAGE.split()[:8])
    return f"{prompts.of(4)}.\n\n{_PASSAGE}\n{_PASSAGE}\n{opening}"


def agent_loop(prompts: Prompts, n_turns: int) -> list[str]:
    """A growing conversation as it is sent again and again: each prompt ends where the agent is to act, and the next
    one has an action like those before in that place, its result and the next task.

    The prompts contain the agent's scripted actions, not a server's answers: both sides get the same prompts. One turn
    comes before the first prompt, as an example.
    """
    history = f"# {prompts.of(4)}\n\n{_INSTRUCTIONS}"
    asked: list[str] = []
    for _ in range(n_turns + 1):
        name, first, second = prompts.words(3)
        turn = _TURN.format(name=name, title=name.title(), first=first, second=second)
        asked.append(history + turn[: turn.index(_ACTION) + len(_ACTION)])
        history += turn
    return asked[1:]
