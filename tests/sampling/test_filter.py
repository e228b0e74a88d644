"""A filter changes only which tokens can be drawn: what is left keeps its proportions."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sampling.test_distribution import excess
from worker.engine.contract import Sampling, TokenId
from worker.sampling.filter import masked
from worker.sampling.sample import candidates, sample

LAW = settings(derandomize=True, deadline=None, max_examples=200)
N_VOCAB = 12
ENDS = np.array([0, 1], dtype=np.intp)


@dataclass(frozen=True)
class Only:
    """A filter that always allows the same tokens."""

    tokens: frozenset[int]
    n_vocab: int = N_VOCAB

    def allows(self, token: int) -> bool:
        return token in self.tokens

    def allowed(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.n_vocab), list(self.tokens))


class Everything(Only):
    def allowed(self) -> NDArray[np.bool_]:
        raise AssertionError("asked for all tokens though the first was allowed")


rows = st.lists(st.floats(-8, 8, width=32), min_size=N_VOCAB, max_size=N_VOCAB).map(
    lambda values: np.array(values, dtype=np.float32)
)
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 3]),
    typical_p=st.sampled_from([0.5, 1.0]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    min_tokens=st.sampled_from([0, 4]),
)
histories = st.lists(st.integers(0, N_VOCAB - 1), max_size=8)
some_tokens = st.frozensets(st.integers(0, N_VOCAB - 1), min_size=1)


@LAW
@given(rows, samplings, histories, some_tokens)
def test_every_token_drawn_is_allowed(
    logits: NDArray[np.float32], sampling: Sampling, generated: list[int], tokens: frozenset[int]
) -> None:
    assert sample(logits, sampling, generated, ENDS, Only(tokens)) in tokens


@LAW
@given(rows, samplings, histories)
def test_a_filter_that_allows_the_token_changes_nothing_and_is_asked_for_no_more(
    logits: NDArray[np.float32], sampling: Sampling, generated: list[int]
) -> None:
    everything = Everything(frozenset(range(N_VOCAB)))
    assert sample(logits, sampling, generated, ENDS, everything) == sample(logits, sampling, generated, ENDS)


@LAW
@given(rows, samplings, histories, some_tokens)
def test_a_token_drawn_again_is_a_candidate_of_the_masked_row(
    logits: NDArray[np.float32], sampling: Sampling, generated: list[int], tokens: frozenset[int]
) -> None:
    sampling = replace(sampling, min_tokens=0)
    token = sample(logits, sampling, generated, ENDS, Only(tokens))
    if sample(logits, sampling, generated, ENDS) != token:
        ids, _ = candidates(masked(logits, Only(tokens)), sampling, generated, ENDS)
        assert token in ids


@pytest.mark.parametrize("tokens", [{3}, {0, 7}, {1, 2, 3, 4, 5}, set(range(11))])
def test_without_truncation_the_draw_follows_the_probabilities_given_what_is_allowed(tokens: set[int]) -> None:
    logits = np.random.default_rng(3).normal(size=N_VOCAB).astype(np.float32)
    sampling = Sampling(seed=11, temperature=0.9)
    counts = Counter(
        int(sample(logits, sampling, range(position), filter=Only(frozenset(tokens)))) for position in range(4000)
    )
    ids, probs = candidates(logits, sampling, ())
    weights = {int(token): float(prob) for token, prob in zip(ids, probs, strict=True) if int(token) in tokens}
    given = {token: weight / sum(weights.values()) for token, weight in weights.items()}
    assert set(counts) <= tokens
    assert len(tokens) == 1 or excess(counts, given) < 3.0


def test_greedy_takes_the_most_probable_token_that_is_allowed() -> None:
    logits = np.array([1.0, 5.0, 4.0, 4.0], dtype=np.float32)
    greedy = Sampling(seed=0, temperature=0.0)
    assert sample(logits, greedy, (), filter=Only(frozenset({0, 2, 3}), 4)) == 2


def test_the_row_is_masked_in_a_copy() -> None:
    logits = np.zeros(3, dtype=np.float32)
    logits.flags.writeable = False
    assert masked(logits, Only(frozenset({1}), 3)).tolist() == [-np.inf, 0.0, -np.inf]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_gives_way_to_a_filter_that_allows_nothing_else(temperature: float) -> None:
    sampling = Sampling(seed=1, temperature=temperature, min_tokens=9, stop_token_ids=(TokenId(5),))
    logits = np.zeros(N_VOCAB, dtype=np.float32)
    assert sample(logits, sampling, (), ENDS, Only(frozenset({1}))) == 1
    assert sample(logits, sampling, (), ENDS, Only(frozenset({5}))) == 5
    assert sample(logits, sampling, (), ENDS, Only(frozenset({1, 6}))) == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_and_filter_that_leave_no_token_are_an_error(temperature: float) -> None:
    logits = np.array([0.0, 1.0, -np.inf], dtype=np.float32)
    banning = Sampling(seed=0, temperature=temperature, logit_bias=((TokenId(0), -np.inf),))
    with pytest.raises(ValueError, match="the grammar allows no token that is possible and not banned"):
        sample(logits, banning, (), filter=Only(frozenset({0, 2}), 3))
    with pytest.raises(ValueError, match="the grammar allows no token"):
        sample(logits, banning, (), filter=Only(frozenset(), 3))
