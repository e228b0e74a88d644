"""Real text: as much as asked for, of the kind asked for, always the same from one seed."""

import ast
import random
from importlib.metadata import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.texts import KINDS, PACKAGES, Kind, chat, code, n_words_of, prose

SEEDS = st.integers(0, 2**64 - 1)
PERMISSIVE = {"MIT", "BSD-3-Clause"}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS, n_words=st.integers(24, 1500))
def test_a_text_has_as_many_words_as_asked_for_and_is_the_seed_s(kind: Kind, seed: int, n_words: int) -> None:
    text = kind(random.Random(seed), n_words)
    assert n_words_of(text) == n_words
    assert text == text.strip() == kind(random.Random(seed), n_words)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_give_many_different_texts(kind: Kind) -> None:
    assert len({kind(random.Random(seed), 64) for seed in range(100)}) > 75


def test_code_can_be_parsed_line_by_line_more_often_than_prose() -> None:
    def n_parsed(kind: Kind) -> int:
        return sum(_parses(line) for seed in range(50) for line in kind(random.Random(seed), 200).splitlines())

    assert n_parsed(code) > 10 * n_parsed(prose)


def test_prose_has_long_lines_without_a_heading_a_table_or_a_list() -> None:
    for seed in range(50):
        lines = prose(random.Random(seed), 300).split("\n")
        whole = [line for line in lines[:-1] if line]
        assert all(line[0].isalpha() or line.startswith("**") for line in whole)
        assert all(len(line.split()) >= 20 for line in whole)


def test_a_chat_ends_where_the_assistant_is_to_answer() -> None:
    for seed in range(50):
        text = chat(random.Random(seed), 300)
        assert text.endswith("\n\nAssistant:")
        assert text.count("User: ") >= 1
        assert text.count("Assistant:") >= 2


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_whose_code_is_used_are_under_a_permissive_licence(package: str) -> None:
    found = metadata(package)
    assert (found["License-Expression"] or found["License"]) in PERMISSIVE


def _parses(line: str) -> bool:
    try:
        return bool(ast.parse(line.strip()).body)
    except SyntaxError:
        return False
