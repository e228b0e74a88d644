"""DRY's search for repetitions against its definition, and the size of its penalty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.reference import match_lengths
from worker.sampling.penalties import dry, repetitions
from worker.wire.messages import Sampling

LAW = settings(derandomize=True, deadline=None, max_examples=400)
few_letters = st.lists(st.integers(0, 2), max_size=40)
repeating = st.builds(lambda word, times, end: word * times + end, few_letters, st.integers(1, 4), few_letters)


@LAW
@given(st.one_of(few_letters, repeating), st.integers(1, 5))
def test_repetitions_are_those_of_the_definition(tokens: list[int], shortest: int) -> None:
    expected = {token: length for token, length in match_lengths(tokens).items() if length >= shortest}
    assert repetitions(tokens, shortest) == expected


def test_the_example_of_the_source() -> None:
    """After a b c … a b c, the token c would carry on 3 tokens, y 2, b 1."""
    tokens = [ord(letter) for letter in "abccbcyabc"]
    assert repetitions(tokens, 1) == {ord("c"): 3, ord("y"): 2, ord("b"): 1}
    assert repetitions(tokens, 3) == {ord("c"): 3}


def test_two_thousand_equal_tokens_are_one_long_repetition() -> None:
    assert repetitions([7] * 2000, 2) == {7: 1999}
    assert repetitions([7, 8] * 1000, 2) == {7: 1998}


def test_the_penalty_grows_with_the_length_and_never_becomes_infinite() -> None:
    sizes = dry(np.array([2.0, 3.0, 5.0, 2000.0]), Sampling(seed=0, dry_multiplier=0.8))
    assert sizes.tolist() == pytest.approx([0.8, 0.8 * 1.75, 0.8 * 1.75**3, 1e100])
    assert dry(np.array([2000.0]), Sampling(seed=0, dry_multiplier=1.0, dry_base=1.0)).tolist() == [1.0]
