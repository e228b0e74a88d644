"""Repetitive prompts: a file of code and a passage to quote, each begun once more where the model is to go on.

A small model continues a repetition of its own accord, without being told to, so that what follows is in the prompt
already but for the edit. All texts are written for this project. Pure.
"""

from tools.bench.words import Prompts

_CODE = '''\
class Account:
    """Money that belongs to somebody."""

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


def code_edit(prompts: Prompts) -> str:
    """The file twice, and the beginning of a third with a line more: the rest of it follows unchanged."""
    beginning = _CODE[: _CODE.index(_EDIT_AFTER) + len(_EDIT_AFTER)]
    return f"# {_unlike_others(prompts)}\n\n{_CODE}\n\n{_CODE}\n\n{beginning}{_ADDED_LINE}"


def quotation(prompts: Prompts) -> str:
    """The passage twice, and its first words."""
    opening = " ".join(_PASSAGE.split()[:8])
    return f"{_unlike_others(prompts)}.\n\n{_PASSAGE}\n{_PASSAGE}\n{opening}"


def _unlike_others(prompts: Prompts) -> str:
    return prompts.of(4)
