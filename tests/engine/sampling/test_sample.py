"""Sampling against a slow reference, by its distribution, and at its edges."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from tests.engine.sampling.reference import expected_candidates, expected_token
from tests.engine.sampling.rows import ids_of, probs_of, row
from worker.engine.sampling.sample import candidates, sample, uniform
from worker.wire.jobs import SamplingParams

LAW = settings(max_examples=250)
PLAIN = SamplingParams(seed=42)
GREEDY = SamplingParams(seed=42, temperature=0.0)
F32_MAX = float(np.finfo(np.float32).max)


ordinary = st.floats(-20, 20, width=32)
tied = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
extreme = st.sampled_from([-math.inf, -F32_MAX, F32_MAX, 1e-45, -1e-45, 1e-20, 88.0, -104.0])
logit = st.one_of(ordinary, tied, extreme)
rows = (
    st.one_of(
        st.lists(ordinary, min_size=1, max_size=24),
        st.lists(tied, min_size=1, max_size=24),
        st.lists(logit, min_size=1, max_size=24),
        st.builds(lambda size, value: [value] * size, st.integers(1, 24), ordinary),
        st.builds(lambda rest, peak: [*rest, peak], st.lists(ordinary, max_size=12), st.just(500.0)),
    )
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: row(*values))
)
samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.one_of(st.sampled_from([0.0, 9e-7, 1e-6, 0.7, 1.0, 2.0]), st.floats(2**-7, 2, width=32)),
    top_p=st.one_of(st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.floats(0, 1, width=32)),
    top_k=st.one_of(st.sampled_from([0, 1, 5, 2**32 - 1]), st.integers(0, 30)),
    repetition_penalty=st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.1, 2.0]), st.floats(2**-6, 2, width=32)),
    min_p=st.one_of(st.sampled_from([0.0, 0.05, 1.0]), st.floats(0, 1, width=32)),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], SamplingParams, list[int]]:
    logits = draw(rows)
    generated = draw(st.lists(st.integers(0, len(logits) - 1), max_size=12))
    return logits, draw(samplings), generated


@pytest.mark.long
@LAW
@given(cases())
def test_candidates_and_draw_agree_with_the_plain_reference(
    case: tuple[NDArray[np.float32], SamplingParams, list[int]],
) -> None:
    logits, sampling, generated = case
    expected = expected_candidates(logits.tolist(), sampling, generated)
    assert ids_of(*case) == list(expected)
    assert probs_of(*case) == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-300)
    assert sample(*case) == expected_token(expected, uniform(sampling.drawn_seed, len(generated)))


@pytest.mark.long
@LAW
@given(cases(), cases())
def test_the_token_depends_on_its_own_row_settings_and_history_only(
    case: tuple[NDArray[np.float32], SamplingParams, list[int]],
    other: tuple[NDArray[np.float32], SamplingParams, list[int]],
) -> None:
    before = case[0].copy()
    first = sample(*case)
    sample(*other)
    assert sample(before.copy(), *case[1:]) == first
    assert case[0].tobytes() == before.tobytes()


CUTS = [json.loads(line) for line in Path(__file__).with_name("cuts.jsonl").read_text().splitlines()]
"""Scores, or what they are the logarithms of, a setting, and the ids of the tokens that it keeps."""


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut['says']} {cut['sampling']}")
def test_the_kept_tokens(cut: dict[str, Any]) -> None:
    scores = [-math.inf if score is None else float(score) for score in cut.get("logits", ())]
    logits = row(*scores, *map(math.log, cut.get("odds", ())))
    assert ids_of(logits, SamplingParams(seed=0, **cut["sampling"])) == cut["kept"]


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, replace(GREEDY, repetition_penalty=1.1), replace(PLAIN, top_k=1)])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (row(0.0, math.nan, 1.0), "NaN"),
        (row(0.0, math.inf, math.nan), "NaN"),
        (row(0.0, math.inf), r"\+inf"),
        (row(-math.inf, -math.inf), "every logit is -inf"),
    ],
)
def test_a_row_without_a_distribution_is_refused(
    logits: NDArray[np.float32], message: str, sampling: SamplingParams
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(logits, sampling, [0])
    with pytest.raises(ValueError, match=message):
        candidates(logits, sampling, [0])
