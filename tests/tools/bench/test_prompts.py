"""Prompts: seeded, of as many words as asked for, never two with the same beginning; some repeat themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_process import WorkerProcess
from tools.bench.prompts import Prompts, code_edit, common_words, in_sentences, quotation

SEEDS = st.integers(0, 2**64 - 1)


def words_of(prompt: str) -> list[str]:
    return prompt.replace(",", "").split(" ")


def test_the_words_are_different_plain_english_words() -> None:
    words = common_words()
    assert len(words) == len(set(words)) > 1000
    assert all(word.isascii() and word.isalpha() and word.islower() and 2 <= len(word) <= 9 for word in words)


@given(SEEDS, st.lists(st.integers(2, 900), max_size=5))
def test_the_same_seed_gives_the_same_prompts(seed: int, sizes: list[int]) -> None:
    one, other = Prompts(seed), Prompts(seed)
    assert [one.of(size) for size in sizes] == [other.of(size) for size in sizes]


@given(SEEDS, st.integers(2, 900))
def test_a_prompt_has_as_many_words_as_asked_for(seed: int, n_words: int) -> None:
    prompt = Prompts(seed).of(n_words)
    words = words_of(prompt)
    assert len(words) == n_words
    assert set(words) <= set(common_words())
    assert prompt == prompt.strip()


@given(SEEDS)
def test_as_many_prompts_as_there_are_words_all_begin_with_another_word(seed: int) -> None:
    prompts = Prompts(seed)
    firsts = [words_of(prompts.of(2))[0] for _ in common_words()]
    assert sorted(firsts) == sorted(common_words())


def test_no_two_words_begin_two_prompts_in_ten_thousand() -> None:
    prompts = Prompts(5)
    beginnings = [tuple(words_of(prompts.of(3))[:2]) for _ in range(10_000)]
    assert len(set(beginnings)) == 10_000


@given(SEEDS, SEEDS)
def test_another_seed_gives_other_prompts(one: int, other: int) -> None:
    assert (Prompts(one).of(40) == Prompts(other).of(40)) == (one == other)


def test_every_third_word_has_a_comma() -> None:
    assert in_sentences(["a", "b", "c", "d", "e", "f", "g"]) == "a b c, d e f, g"


@given(SEEDS)
def test_what_else_is_drawn_is_of_the_seed_and_each_time_its_own(seed: int) -> None:
    one, other = Prompts(seed), Prompts(seed)
    first = one.chance().random()
    assert first == other.chance().random()
    assert first != one.chance().random()


# ── repetitive prompts, continued by the default model itself ────────────────────────────────────


@pytest.fixture(scope="module")
def worker(model_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess("--model", str(model_path), "--port", "0", "--ctx-size", "2048", "--parallel", "1") as process:
        yield process.ready()


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_a_passage_is_quoted_to_the_letter(worker: WorkerProcess) -> None:
    prompt = quotation(Prompts(1))
    quoted = worker.text(prompt=prompt, max_tokens=120, ignore_eos=True)
    assert quoted in prompt
    assert len(quoted) > 300


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_a_file_is_repeated_line_by_line_but_for_its_edit(worker: WorkerProcess) -> None:
    prompt = code_edit(Prompts(2))
    _, *lines = worker.text(prompt=prompt, max_tokens=120, ignore_eos=True).splitlines()[:-1]
    known = [line for line in lines if line in prompt.splitlines()]
    assert len(lines) > 10
    assert len(known) / len(lines) > 0.7
