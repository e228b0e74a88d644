"""Rows of logits and greedy continuations from the real library."""

import numpy as np
import pytest

from parity.llama.scoring import Scorer, Setup
from tests.llama.conftest import Loaded, MakeContext, slice_of
from worker.errors import ModelLoadFailed
from worker.llama.model import Model
from worker.wire.jobs import TokenId

TOKENS = [504, 1761, 3156, 282, 260, 2667]
OTHERS = [9, 99, 999]


def scorer_of(model: Model, setup: Setup | None = None, n_ctx: int = 32) -> Scorer:
    return Scorer(model, setup or Setup(), n_ctx=n_ctx, n_threads=1)


pytestmark = pytest.mark.model


def test_a_row_is_what_the_serving_context_answers(loaded: Loaded, make_context: MakeContext) -> None:
    context = make_context(type_k="f32", type_v="f32", flash_attn="off")
    context.decode([slice_of(0, 0, [TokenId(token) for token in TOKENS])])
    with scorer_of(loaded.model) as scorer:
        assert np.allclose(scorer.logits(TOKENS)[-1], context.rows()[0], atol=1e-3)


def test_rows_are_copies_and_no_text_shows_in_the_next(loaded: Loaded) -> None:
    with scorer_of(loaded.model) as scorer:
        first = scorer.logits(TOKENS)
        kept = first.copy()
        scorer.logits(OTHERS)
        assert (first == kept).all()
        assert (scorer.logits(TOKENS) == kept).all()


@pytest.mark.parametrize("flash_attn", ["off", "on"])
@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16"])
def test_every_setup_scores(loaded: Loaded, cache_type: str, flash_attn: str) -> None:
    """Rounding of the memory moves a logit of this model by a tenth of a nat on average: activations are quantised to
    eight bits, and fall to another side of a step. Single ones move by up to one, with any products."""
    with scorer_of(loaded.model) as exact:
        wanted = exact.logits(TOKENS)
    with scorer_of(loaded.model, Setup(cache_type, cache_type, flash_attn)) as scorer:
        moved = np.abs(scorer.logits(TOKENS) - wanted)
    assert moved.mean() < 0.4
    assert moved.max() < 3


def test_greedy_takes_the_highest_of_each_row(loaded: Loaded) -> None:
    with scorer_of(loaded.model) as scorer:
        answers = scorer.greedy(TOKENS, 5)
        rows = scorer.logits([*TOKENS, *answers[:-1]])
    assert rows[len(TOKENS) - 1 :].argmax(-1).tolist() == answers


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "0 tokens"),
        ([5] * 33, "33 tokens that need 33 cells; 1 to 32"),
        ([-1], "outside the vocabulary of 49152"),
        ([5, 49152], "outside the vocabulary"),
    ],
)
@pytest.mark.usefixtures("default_model")
def test_tokens_that_would_abort_the_process_are_refused(loaded: Loaded, tokens: list[int], message: str) -> None:
    with scorer_of(loaded.model) as scorer:
        with pytest.raises(ValueError, match=message):
            scorer.logits(tokens)
        assert len(scorer.logits([5])) == 1


def test_a_continuation_needs_room_and_a_length(loaded: Loaded) -> None:
    with scorer_of(loaded.model, n_ctx=8) as scorer:
        with pytest.raises(ValueError, match="6 tokens that need 9 cells; 1 to 8"):
            scorer.greedy(TOKENS, 4)
        with pytest.raises(ValueError, match="0 tokens cannot be generated"):
            scorer.greedy(TOKENS, 0)
        assert len(scorer.greedy(TOKENS, 3)) == 3


@pytest.mark.parametrize(
    ("n_ctx", "n_threads", "n_rows"), [(0, 1, 1), (8, 0, 1), (8, 513, 1), (8, 1, 0), (2**31, 1, 1)]
)
def test_sizes_out_of_range_are_refused(loaded: Loaded, n_ctx: int, n_threads: int, n_rows: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Scorer(loaded.model, Setup(n_rows=n_rows), n_ctx=n_ctx, n_threads=n_threads)


def test_a_setup_that_the_library_refuses_is_an_error_with_its_reason(loaded: Loaded) -> None:
    with pytest.raises(ModelLoadFailed, match=r"cannot be made: .*(V cache|flash)"):
        scorer_of(loaded.model, Setup(type_v="q8_0", flash_attn="off"))


def test_a_closed_scorer_answers_nothing(loaded: Loaded) -> None:
    scorer = scorer_of(loaded.model)
    scorer.close()
    scorer.close()
    for ask in (lambda: scorer.logits([5]), lambda: scorer.greedy([5], 1), scorer.kv):
        with pytest.raises(ValueError, match="the scorer is closed"):
            ask()


def test_a_model_closes_its_scorers(tiny: Model) -> None:
    scorer = scorer_of(tiny)
    assert len(scorer.logits([1])) == 1
    tiny.close()
    with pytest.raises(ValueError, match="closed"):
        scorer.logits([1])
