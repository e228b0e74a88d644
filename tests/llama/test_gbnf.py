"""Texts of grammars, read without a model; tests/llama/test_grammar.py has llama.cpp read them too."""

import time

import pytest
from llama_cpp import llama_grammar

from tests.llama.hostile_grammars import HOSTILE, MISTAKEN
from worker.llama.gbnf import TERMINAL, BadGrammar, Rules, read_gbnf
from worker.llama.grammar_cost import MAX_CHAIN, MAX_WAYS, check_cost

SHIPPED = [name for name in dir(llama_grammar) if name.endswith("_GBNF")]


def checked(text: str, max_depth: int = 64) -> Rules:
    rules = read_gbnf(text, max_depth=max_depth)
    check_cost(rules)
    return rules


@pytest.mark.parametrize("name", [*HOSTILE, *MISTAKEN])
def test_a_bad_grammar_is_refused_at_once_with_its_place_and_without_its_text(name: str) -> None:
    text, message = {**HOSTILE, **MISTAKEN}[name]
    began = time.thread_time()
    with pytest.raises(BadGrammar) as caught:
        checked(text)
    assert time.thread_time() - began < 2
    assert message in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("name", SHIPPED)
def test_the_grammars_that_the_binding_ships_are_read(name: str) -> None:
    assert "root" in checked(getattr(llama_grammar, name)).numbers


@pytest.mark.parametrize(
    "text",
    [
        "root ::= ",
        'root ::= "a" # a comment ) [',
        'root ::=\n  "a"\n\n',
        'root ::= "a" |\n  "b"',
        'root ::= (\n "a"\n | b\n)\nb ::= [^\\]"-]',
        'root ::= "a"\r\nb ::= root\r\n',
        r'root ::= "\x41\u00e9\U0001F600\n\r\t\\\"\[\]"',
        'root ::= "a\nb"',
        "root ::= [a-] [-a] [] [^] [a-z0-9_] .",
        r"root ::= [\t-a] [^\x00-\x1f] [--a] [+--]",
        'root ::= "a"{3} "b"{3,} "c"{ 3 , 4 } "d"{0}',
        'root ::= ("a"?)* b* \nb ::= "c" |',
        'root ::= "a" root | ',
        'root ::= "a"\nroot ::= "b"',
        "root ::= <think> !<[7]>*",
    ],
)
def test_what_the_notation_allows_is_read(text: str) -> None:
    checked(text)


@pytest.mark.parametrize(
    ("text", "n_elements"),
    [
        ('root ::= "abc"', 4),
        (r'root ::= "\x41\\" | [^a-z\]]', 7),
        ('root ::= "ab"{3}', 8),
        ('root ::= "ab"{1,3}', 14),
        ('root ::= "ab"*', 7),
        ('root ::= ("ab")', 5),
    ],
)
def test_elements_are_counted_as_llama_cpp_makes_them(text: str, n_elements: int) -> None:
    """Each character, reference, bar and end; the repetition itself may be counted as one too many."""
    assert n_elements <= checked(text).n_elements <= n_elements + 1


def test_repetitions_become_rules() -> None:
    rules = checked('root ::= ("a" | b){2,3}\nb ::= "c"*')
    root, group, b = rules.numbers["root"], 1, rules.numbers["b"]
    [[first, second, optional]] = rules.alternatives[root]
    assert (first, second) == (group, group)
    assert rules.alternatives[group] == [[TERMINAL], [b]]
    assert rules.alternatives[optional] == [[group], []]
    [[loop]] = rules.alternatives[b]
    assert rules.alternatives[loop] == [[TERMINAL, loop], []]


def test_the_bounds_are_where_they_are_said_to_be() -> None:
    def nested(n: int) -> str:
        return "root ::= " + "(" * n + '"a"' + ")" * n

    def choice(n: int) -> str:
        return "root ::= " + " | ".join(['"a"'] * n)

    def row(n: int) -> str:
        return "\n".join(["root ::= r1", *(f"r{i} ::= r{i + 1}" for i in range(1, n - 1)), f'r{n - 1} ::= "a"'])

    for make, most in ((nested, 64), (choice, MAX_WAYS), (row, MAX_CHAIN)):
        checked(make(most))
        with pytest.raises(BadGrammar):
            checked(make(most + 1))


def test_a_large_grammar_of_little_work_is_read_quickly() -> None:
    text = "\n".join(
        ['root ::= "{" item* "}"', "item ::= [a-z]+ "] + [f'r{i} ::= "some text" | item' for i in range(2200)]
    )
    assert len(text) > 60_000
    began = time.thread_time()
    checked(text)
    assert time.thread_time() - began < 1
