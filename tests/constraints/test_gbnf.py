"""GBNF texts rewritten in Lark, and refused; tests/constraints/test_grammar_verdicts.py has llguidance follow them."""

import contextlib
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_grammar

from tests.constraints.hostile_grammars import HOSTILE, LARK
from tests.tables import cases
from worker.constraints.gbnf import MAX_CHAIN, MAX_DEPTH, MAX_REPEATS, BadGrammar, check_lark, is_lark, lark_of
from worker.wire.jobs import TokenId

SHIPPED = [name for name in dir(llama_grammar) if name.endswith("_GBNF")]

MAX_COMPILE_S, MAX_STEP_S, MAX_MIB = 3.0, 1.0, 64
"""Processor time and memory, of what may be sent by anybody. The law is a second each; machines that run tests are used
by others at the same time."""

FRAGMENTS = ['"a"', '""', "[a-c]", "[^x]", "[z-a]", ".", "b", "root", "(", ")", "*", "+", "?", "{2}", "{1,3}", "{0,}"]
FRAGMENTS += [
    "|",
    "\nb ::= ",
    "\n",
    "\r\n",
    " ",
    "# b\n",
    "<[7]>",
    "!<[4]>",
    "<b>",
    r'"\x41"',
    "é",
    "[",
    '"',
    "::=",
    "\0",
]


def token_of(written: str) -> TokenId | None:
    return {"<think>": TokenId(9), "<[7]>": TokenId(7)}.get(written)


def lark(text: str) -> str:
    return lark_of(text, token_of)


@cases
def test_a_mistake_is_refused_with_its_place_and_without_the_text(text: str, message: str) -> None:
    with pytest.raises(BadGrammar) as caught:
        lark(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.long
def test_no_grammar_ends_the_process_or_costs_it_much() -> None:
    """The grammars run in a child, which would die of it. Each is refused, compiled, or ends after a few tokens."""
    command = [sys.executable, "-m", "tests.constraints.hostile_grammars"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    costs = dict(json.loads(line) for line in child.stdout.splitlines())
    assert child.returncode == 0, (list(costs)[-1:], child.stderr[-1000:])
    assert costs.keys() == {**HOSTILE, **LARK}.keys()
    for name, cost in costs.items():
        assert cost["compile_s"] < MAX_COMPILE_S, name
        assert cost["step_s"] < MAX_STEP_S, name
        assert cost["mib"] < MAX_MIB, name


@pytest.mark.parametrize("written", ["<b>", "<[8]>", "!<[8]>", "<[x]>", "<[4000000000]>"])
def test_a_token_that_the_model_lacks_is_refused_at_its_place(written: str) -> None:
    with pytest.raises(
        BadGrammar, match=r"^line 2, column 3: this is no token of the model's vocabulary that has text$"
    ):
        lark(f"root ::= (\n  {written})")


def test_the_bounds_are_where_they_are_said_to_be() -> None:
    def nested(n: int) -> str:
        return f'root ::= {"(" * n}"a"{")" * n}'

    def repeated(n: int) -> str:
        return f'root ::= "a"{{0,{n}}}'

    def row(n: int) -> str:
        return "\n".join(["root ::= r1", *(f"r{i} ::= r{i + 1}" for i in range(1, n - 1)), f'r{n - 1} ::= "a"'])

    for make, most in ((nested, MAX_DEPTH), (repeated, MAX_REPEATS), (row, MAX_CHAIN)):
        lark(make(most))
        with pytest.raises(BadGrammar):
            lark(make(most + 1))


@pytest.mark.long
@settings(max_examples=500)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_any_text_is_read_or_refused(pieces: list[str]) -> None:
    text = "root ::= " + "".join(pieces)
    with contextlib.suppress(BadGrammar):
        assert re.search(r"^start: ", lark(text), re.MULTILINE)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_grammars_that_the_binding_ships_are_read(name: str) -> None:
    assert "start: " in lark(getattr(llama_grammar, name))


@cases
def test_what_the_notation_allows_is_read(text: str) -> None:
    lark(text)


@cases
def test_each_character_and_class_becomes_a_lexeme(right_side: str, expected: str) -> None:
    """The grammar is a rule, as only a rule can use itself."""
    assert lark(f"root ::= {right_side} | root") == f"start: {expected} | start\n"


def test_a_grammar_without_recursion_becomes_one_lexeme() -> None:
    assert lark('root ::= b b\nb ::= ("a")?') == 'start: START\nSTART: R1 R1\nG1: "a"\nR1: (G1)?\n'
    assert lark('root ::= <[7]> b\nb ::= "a"') == 'start: <[7]> r1\nr1: "a"\n'


def test_groups_and_repeated_repetitions_become_rules() -> None:
    assert lark('root ::= ("a" | 2-B)+?\n2-B ::= "b" root') == 'g1: "a" | r1\ng2: (g1)+\nstart: (g2)?\nr1: "b" start\n'


def test_of_two_rules_with_one_name_the_later_counts() -> None:
    assert lark('root ::= "yes"\nroot ::= "n"') == lark('root ::= "n"')


def test_a_large_grammar_of_little_work_grows_no_more_than_it_is_said_to() -> None:
    for text in (f'root ::= "{"a" * 60_000}"', f"root ::= [{'a' * 60_000}]", "root ::= a\na ::= " + "a " * 30_000):
        assert len(lark(text)) < 17 * len(text)


def test_lark_is_what_begins_with_its_options() -> None:
    assert is_lark('\n %llguidance {}\nstart: "a"')
    assert not any(is_lark(text) for text in ('start: "a"', 'root ::= "%llguidance"', "# %llguidance", ""))


def test_an_ordinary_lark_grammar_passes() -> None:
    check_lark('%llguidance {}\nstart: item ("," item)*\nitem: /[a-z]+/ | "(" start ")"\n')
