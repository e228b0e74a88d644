"""The limits of a grammar's text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.protocol.grammar import MAX_BYTES, MAX_DEPTH, grammar_errors, nesting


def constraints(grammar: str) -> list[str]:
    return [error.constraint for error in grammar_errors(grammar)]


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("", ["non_empty"]),
        (" \n\t", ["non_empty"]),
        ("x" * MAX_BYTES, []),
        ("世" * (MAX_BYTES // 3 + 1), [f"max_length({MAX_BYTES})"]),
        ('root ::= "a"\0)', ["no_nul"]),
        ("(" * MAX_DEPTH, []),
        ("(" * (MAX_DEPTH + 1), [f"max_depth({MAX_DEPTH})"]),
        ("(" * MAX_DEPTH + "[a]", [f"max_depth({MAX_DEPTH})"]),
        ("({" * 33, [f"max_depth({MAX_DEPTH})"]),
        ("(a)" * 20_000, []),
    ],
)
def test_limits(grammar: str, expected: list[str]) -> None:
    assert constraints(grammar) == expected


@pytest.mark.parametrize(
    ("grammar", "depth"),
    [
        ("root ::= a | b", 0),
        ("root ::= (a (b) [c]){2} (d)", 2),
        ('"(((" (a)', 1),
        (r'"\"(((" (a)', 1),
        (r'"\\" ((a))', 2),
        ("[(((] (a)", 1),
        (r"[\](((] (a)", 1),
        ("[^]] ((a))", 2),
        ("[] ((a))", 2),
        ("# (((\n(a)", 1),
        ('a#"\n((b))', 2),
        ('"#" ((b))', 2),
        ("<|(((|> (a) !<(((>", 1),
        (")))(a)", 1),
        ('(("', 2),
        ("(([", 3),
        ('((("\\', 3),
    ],
)
def test_brackets_count_but_in_strings_classes_tokens_and_comments(grammar: str, depth: int) -> None:
    assert nesting(grammar) == depth


@given(st.text('()[]{}"\\#<>\n a', max_size=200))
@settings(derandomize=True, deadline=None, max_examples=500)
def test_any_text_has_a_depth_of_at_most_its_brackets(text: str) -> None:
    assert 0 <= nesting(text) <= sum(map(text.count, "([{"))


@pytest.mark.parametrize("part", ["(", "[", "{", '"', "<", "#", "\\", '"\\', "[\\", "()", "[]", '""', "<>", "(["])
def test_a_megabyte_is_read_in_linear_time(part: str) -> None:
    """Had it to look ahead to the end at each, this would take hours."""
    assert nesting(part * (1_000_000 // len(part))) >= 0
