"""Patterns that are refused, and what the others are written as; test_honoured.py draws texts from them."""

import re
import warnings
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.protocol.schema.pattern import MAX_GROUPS_DEEP, PatternRefused, plain_pattern


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        ("^$", "^()$"),
        ("^ab c$", "^(ab c)$"),
        ("^a|b$", "^(a|b)$"),
        ("^(?:a)$", "^((a))$"),
        (r"^\.$", r"^([\u002E])$"),
        (r"^\d$", r"^([\u0030-\u0039])$"),
        (r"^[\w-]$", r"^([\u002D\u0030-\u0039\u0041-\u005A\u005F\u0061-\u007A])$"),
        (r"^[\s]$", r"^([\u0020])$"),
        (r"^[ -~]$", r"^([\u0020-\u0021\u0023-\u005B\u005D-\u007E])$"),
        ("^👋$", r"^([\U0001F44B])$"),
        ("^a{2,3}b{4}c{5,}d*e+f?$", "^(a{2,3}b{4}c{5,}d*e+f?)$"),
    ],
)
def test_a_pattern_is_written_with_nothing_the_converter_does_not_know(pattern: str, plain: str) -> None:
    assert plain_pattern(pattern)[0] == plain


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a", "must begin with ^ and end with $"),
        ("^a", "must begin with ^ and end with $"),
        ("a$", "must begin with ^ and end with $"),
        ("^", "must begin with ^ and end with $"),
        (r"^a\$", "must end with a $ that is not escaped"),
        ("^a$b$", "where it means nothing we know"),
        ("^a^b$", "where it means nothing we know"),
        ("^*$", "where it means nothing we know"),
        ("^a|+$", "where it means nothing we know"),
        ("^a{,3}$", "where it means nothing we know"),
        ("^a]$", "where it means nothing we know"),
        ("^(a$", "never closed"),
        ("^a)$", "unbalanced"),
        ("^(?=a)$", "group of a kind"),
        ("^(?<n>a)$", "group of a kind"),
        ("^a*?$", "repeats a repetition"),
        ("^a{2}{3}$", "repeats a repetition"),
        ("^a{3,2}$", "contradict"),
        ("^[a$", "never closed"),
        ("^[]$", "empty"),
        ("^[^]$", "empty"),
        ("^[[a]$", "inside a set"),
        ("^[z-a]$", "ends before it begins"),
        (r"^[\d-z]$", "does not go from character to character"),
        (r"^[a-\d]$", "does not go from character to character"),
        (r"^\D$", "escape"),
        (r"^\W$", "escape"),
        (r"^[^\d]$", "escape"),
        (r"^\bа$", "escape"),
        (r"^(a)\1$", "escape"),
        (r"^\p{L}$", "escape"),
        ('^"$', "JSON must escape"),
        (r"^\\$", "JSON must escape"),
        (r"^\n$", "JSON must escape"),
        (r"^[\x00-\x1f]$", "JSON must escape"),
        (r"^\ud800$", "JSON must escape"),
        ("^" + "(" * 65 + ")" * 65 + "$", "nested deeper than 64"),
    ],
)
def test_a_pattern_that_cannot_be_honoured_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternRefused, match=re.escape(why)):
        plain_pattern(pattern)


def test_groups_may_nest_to_the_limit() -> None:
    plain_pattern("^" + "(" * MAX_GROUPS_DEEP + "a" + ")" * MAX_GROUPS_DEEP + "$")


@pytest.mark.parametrize(
    ("pattern", "n_repeats"), [("^a$", 1), ("^a*b?$", 3), ("^(a{3,9}b{5,})c{2}$", 18), ("^a{0}$", 2)]
)
def test_repetitions_are_counted_to_the_most_they_allow(pattern: str, n_repeats: int) -> None:
    assert plain_pattern(pattern)[1] == n_repeats


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

likely = st.lists(
    st.sampled_from([*'ab.|()[]^-{}*+?$"\\', r"\d", r"\s", r"\S", r"\w", "[a-c]", "[^b]", "{1,2}", "(a|b)"]), max_size=8
).map("".join)


@given(likely, st.text("ab1 c.-", max_size=4))
@settings(derandomize=True, deadline=None, max_examples=400)
def test_the_plain_pattern_matches_nothing_that_the_original_does_not(pattern: str, text: str) -> None:
    """Python reads both; its dialect differs from ECMA 262 only in what is refused here."""
    try:
        plain, _ = plain_pattern(f"^{pattern}$")
    except PatternRefused:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if re.fullmatch(plain, text):
            assert re.search(f"^{pattern}$", text)


@given(st.text(max_size=30))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    with suppress(PatternRefused):
        plain, n_repeats = plain_pattern(f"^{text}$")
        assert n_repeats >= 1
        re.compile(plain)
