"""Slices draw the same bits from rows next to any others; ggml weighs a row as exactly as the sampler needs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from tests.constraints.bytewise import constrain
from tests.engine.sampling.test_wide_rows import LAW as WIDE_ROWS
from tests.engine.sampling.test_wide_rows import cases
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.constraints.answer import AnswerConstraint
from worker.engine.sampling.row import F32_SLACK, Estimate, numpy_estimate
from worker.engine.sampling.sample import sample
from worker.engine.step import Sampled, Score, Scoring, Slice
from worker.llama.context import Logits
from worker.llama.library import LIBRARY_DIR
from worker.llama.model import Model, constraints_of
from worker.llama.runner import MIN_ROWS, MIN_VOCABULARY, Draws, DrawThreads, fastest_estimate
from worker.wire.jobs import SamplingParams, SlotId, TokenId

LAW = settings(max_examples=40)
ALONE, THREADS = DrawThreads(1), DrawThreads(3, min_rows=1, min_vocabulary=1)
N_CHARACTERS = 5_000
"""The vocabulary is wide enough for the samplers to cut before they sort."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    write_tiny(path, characters="".join(chr(0x4E00 + i) for i in range(N_CHARACTERS)))
    with loaded_on_cpu(path) as model:
        yield model


@pytest.fixture(scope="module")
def constraints(wide: Model) -> list[AnswerConstraint | None]:
    """One for each slot. Draws leave them as they were."""
    make = constraints_of(wide)
    regexes = [None, "[a-f]{3}[0-9]*", None, "[0-9]+", None, None, "(?s:.*)", None]
    return [None if regex is None else constrain(make, regex=regex) for regex in regexes]


@dataclass(frozen=True)
class Asked:
    """The wishes of one slice, and the shape of its rows."""

    sampling: SamplingParams
    scale: float
    n_drafts: int
    is_scored: bool
    is_nan: bool
    n_generated: int


samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1e-3, 0.8, 1.0, 2.0]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 40]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    typical_p=st.sampled_from([1.0, 1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    xtc_probability=st.sampled_from([0.0, 0.0, 1.0]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 0, 20]),
)
asked = st.builds(
    Asked,
    sampling=samplings,
    scale=st.sampled_from([0.0, 1.0, 3.0, 30.0]),
    n_drafts=st.sampled_from([0, 0, 0, 3]),
    is_scored=st.sampled_from([False, False, False, True]),
    is_nan=st.sampled_from([False] * 7 + [True]),
    n_generated=st.sampled_from([0, 1, 30]),
)


def made(slot: int, want: Asked, constraint: AnswerConstraint | None, n_vocab: int) -> tuple[Slice, Logits]:
    """A slice, and its rows; most of its drafts come true where the rows have one clear best."""
    n_tokens = 4 if want.is_scored else want.n_drafts + 1
    rng = np.random.default_rng(want.sampling.drawn_seed)
    rows = (rng.normal(size=(n_tokens, n_vocab)) * want.scale).astype(np.float32)
    if want.is_nan:
        rows[-1, rng.integers(n_vocab)] = np.nan
    tokens = [TokenId(5), *(TokenId(int(row.argmax())) for row in rows[:-1])]
    generated = [TokenId(int(token)) for token in rng.integers(0, n_vocab, want.n_generated)]
    if want.is_scored:
        scoring = Scoring(targets=tokens, scores=[Score(b"")])
        return Slice(SlotId(slot), 0, tokens, want.sampling, generated, constraint, scoring=scoring), rows
    return Slice(SlotId(slot), 0, tokens, want.sampling, generated, constraint, want.n_drafts), rows


def drawn(draws: Draws, slices: list[Slice], rows: Logits) -> tuple[list[Sampled], list[list[Score]]]:
    """The draws of the slices, and their scores."""
    scorings = [slice_.scoring for slice_ in slices if slice_.scoring is not None]
    for scoring in scorings:
        del scoring.scores[1:]
    sampled = draws.of(slices, rows)
    return sampled, [list(scoring.scores) for scoring in scorings]


@LAW
@given(wants=st.lists(asked, min_size=1, max_size=8))
def test_other_slices_and_threads_change_no_draw(
    wide: Model, constraints: list[AnswerConstraint | None], wants: list[Asked]
) -> None:
    pairs = [made(slot, want, constraints[slot], wide.n_vocab) for slot, want in enumerate(wants)]
    slices, rows = [slice_ for slice_, _ in pairs], np.concatenate([own for _, own in pairs])
    together = drawn(Draws(wide, ALONE), slices, rows)
    alone = [drawn(Draws(wide, ALONE), [slice_], own) for slice_, own in pairs]
    assert together[0] == [sampled for each, _ in alone for sampled in each]
    assert together[1] == [scores for _, each in alone for scores in each]
    assert drawn(Draws(wide, THREADS), slices, rows) == together


@given(n_threads=st.integers(1, 9), n_rows=st.integers(0, 64), n_vocab=st.sampled_from((1_000, 32_000, 152_064)))
def test_drawing_is_shared_out_where_there_are_many_rows_and_values(n_threads: int, n_rows: int, n_vocab: int) -> None:
    pays = DrawThreads(n_threads).pays(n_rows, n_vocab)
    assert pays == (n_threads > 1 and n_rows >= MIN_ROWS and n_vocab >= MIN_VOCABULARY)


@given(asked=st.lists(st.integers()), n_threads=st.integers(2, 9))
def test_what_is_shared_out_comes_back_in_order_or_is_raised(asked: list[int], n_threads: int) -> None:
    threads = DrawThreads(n_threads)
    assert threads.map(str, asked) == [str(each) for each in asked]
    with pytest.raises(ZeroDivisionError):
        threads.map(lambda each: 1 / each, [*asked, 0, *asked])


@pytest.mark.parametrize("n_drafts", [0, 1, 3])
def test_the_log_probabilities_of_a_name_are_those_that_a_client_may_ask_for(wide: Model, n_drafts: int) -> None:
    """They are reported for its tokens and the quote behind it alone, with and without drafts."""

    def tokens_of(text: str) -> list[TokenId]:
        return wide.tokenize(text, add_special=False, parse_special=False)

    generated, written = tokens_of('{"name": "'), tokens_of('ab",')
    rows = np.random.default_rng(1).normal(size=(len(written), wide.n_vocab)).astype(np.float32)
    rows[range(len(written)), written] = 9.0

    def draw(*, n_top: int | None, watches_names: bool) -> list[Sampled]:
        sampling = SamplingParams(seed=1, temperature=0.0, logprobs=n_top)
        text, found = list(generated), list[Sampled]()
        while len(found) < len(written):
            drafts = written[len(found) : len(found) + n_drafts]
            tokens = [text[-1], *drafts]
            slice_ = Slice(SlotId(0), 0, tokens, sampling, text, None, len(drafts), watches_names=watches_names)
            found += Draws(wide, ALONE).of([slice_], rows[len(found) : len(found) + len(tokens)])
            text = [*generated, *(each.token for each in found)]
        return found

    every = [each.logprob for each in draw(n_top=0, watches_names=False)]
    assert all(entry is not None and not entry.is_of_name for entry in every)
    watched = draw(n_top=None, watches_names=True)
    assert [each.token for each in watched] == written
    expected = [None if entry is None else replaced(entry, is_of_name=True) for entry in every[:-1]]
    assert [each.logprob for each in watched] == [*expected, None]
    both = [each.logprob for each in draw(n_top=0, watches_names=True)]
    assert both == [*expected, every[-1]]


# ── the sum of a row ─────────────────────────────────────────────────────────────────────────────

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


@WIDE_ROWS
@given(cases())
def test_no_token_depends_on_the_way(case: tuple[Logits, SamplingParams, list[int]]) -> None:
    row, sampling, generated = case
    assert sample(row, sampling, generated, estimate=ESTIMATES[1]) == sample(row, sampling, generated)
