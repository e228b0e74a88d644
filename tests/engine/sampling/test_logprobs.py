"""Log-probabilities are the log-softmax of the raw logits, and the list is the top of the row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.engine.sampling.sample import log_probabilities

LAW = settings(max_examples=150)
logit = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([-math.inf, 0.0, -0.0, 1.0, 1.0, -3.4e38, 3.4e38, 88.0])
)
rows = (
    st.lists(logit, min_size=1, max_size=30)
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: np.array(values, dtype=np.float32))
)


def expected(row: NDArray[np.float32]) -> list[float]:
    """ln p of every token."""
    values = [float(value) for value in row]
    total = math.fsum(math.exp(value - max(values)) for value in values)
    return [value - max(values) - math.log(total) for value in values]


@LAW
@given(rows, st.data())
def test_they_agree_with_the_formula(row: NDArray[np.float32], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    n_top = data.draw(st.integers(0, 20))
    logprob, top = log_probabilities(row, token, n_top)
    logprobs = expected(row)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    possible = [token for token in order if row[token] > -math.inf]
    assert logprob == pytest.approx(logprobs[token], rel=1e-12, abs=1e-12)
    assert [token for token, _ in top] == possible[:n_top]
    assert [value for _, value in top] == pytest.approx([logprobs[token] for token, _ in top], rel=1e-12, abs=1e-12)


def test_a_whole_vocabulary_lists_the_same_top_as_a_sort() -> None:
    row = np.round(np.random.default_rng(0).normal(size=49_152) * 3).astype(np.float32)
    _, top = log_probabilities(row, 7, 20)
    assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:20].tolist()


@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_a_row_without_a_distribution_is_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="no log-probabilities"):
        log_probabilities(np.array(row, dtype=np.float32), 0, 1)
