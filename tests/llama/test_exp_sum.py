"""ggml's way to weigh a row: as exact as the sampler relies on, and no token changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.sampling.test_wide_rows import LAW, cases
from worker.engine.sampling.row import F32_SLACK, Estimate, Logits, numpy_estimate
from worker.engine.sampling.sample import sample
from worker.llama.library import LIBRARY_DIR
from worker.llama.runner import fastest_estimate
from worker.wire.jobs import SamplingParams

ESTIMATES = [numpy_estimate, fastest_estimate()]


def test_the_library_has_the_kernel_where_its_cpu_backend_is_no_module() -> None:
    has_modules = any(LIBRARY_DIR.glob("*ggml-cpu-*"))
    assert (fastest_estimate() is numpy_estimate) == has_modules


@pytest.mark.parametrize("estimate", ESTIMATES)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 7, 8, 9, 1000, 49_152]),
    shift=st.sampled_from([0.0, 2.5]),
    temperature=st.sampled_from([0.3, 1.0, 30.0]),
)
def test_a_sum_is_off_by_no_more_than_its_slack(
    estimate: Estimate, seed: int, size: int, shift: float, temperature: float
) -> None:
    row = np.random.default_rng(seed).normal(scale=3.0, size=size).astype(np.float32)
    exact = np.exp((row.astype(np.float64) - shift) / temperature).sum()
    assert estimate(row, shift, temperature) == pytest.approx(exact, rel=F32_SLACK)


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("place", range(20))
@pytest.mark.parametrize(("value", "expected"), [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, 19.0), (-1e38, 19.0)])
def test_what_is_no_number_shows_wherever_it_stands(
    estimate: Estimate, place: int, value: float, expected: float
) -> None:
    row = np.zeros(20, np.float32)
    row[place] = value
    assert estimate(row, 0.0, 1.0) == pytest.approx(expected, nan_ok=True)


@LAW
@given(cases())
def test_no_token_depends_on_the_way(case: tuple[Logits, SamplingParams, list[int]]) -> None:
    row, sampling, generated = case
    assert sample(row, sampling, generated, estimate=ESTIMATES[1]) == sample(row, sampling, generated)
