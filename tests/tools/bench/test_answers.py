"""Rates, gaps and percentiles follow from the times of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.bench.made import answer, steady
from tools.bench.answers import gaps_of, per_s, percentile, whole_rate

TIMES = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(TIMES, min_size=1, max_size=50), st.integers(1, 99))
def test_a_percentile_is_numpy_s(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


def test_a_percentile_of_nothing_is_0() -> None:
    assert percentile([], 99) == 0.0


@given(st.integers(2, 50), st.floats(0.5, 1000), st.floats(0, 10), st.floats(0, 10))
def test_a_steady_stream_has_its_rate_whatever_came_before(
    n_tokens: int, rate: float, begun_s: float, ttft_s: float
) -> None:
    stream = steady(n_tokens, rate, begun_s=begun_s, ttft_s=ttft_s)
    assert stream.tokens_per_s == pytest.approx(rate, rel=1e-6)
    assert stream.ttft_s == pytest.approx(ttft_s, abs=1e-9)
    assert gaps_of([stream]) == pytest.approx([1 / rate] * (n_tokens - 1), rel=1e-6, abs=1e-8)


def test_the_whole_rate_counts_from_the_first_request_to_the_last_token() -> None:
    early, late = answer([1.0, 2.0], sent_s=0.0), answer([4.0, 8.0], sent_s=3.0)
    assert whole_rate([early, late]) == 4 / 8


def test_sampled_tokens_count_also_those_without_text() -> None:
    assert answer([1.0, 3.0], n_tokens=5).tokens_per_s == 4 / 2
    assert whole_rate([answer([1.0, 2.0], n_tokens=6)]) == 3.0


def test_no_time_at_all_gives_no_rate() -> None:
    assert per_s(5, 0.0) == 0.0
