"""Steps on the real library: what the engine relies on."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from tests.constraints.bytewise import constrain
from tests.llama.conftest import GREEDY, MakeContext, slice_of
from tests.llama.tiny import END, write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.constraints.answer import AnswerConstraint
from worker.engine.step import BadBatch, NoRoom, Sampled, Slice, Step, Token
from worker.llama.batch import batches
from worker.llama.model import Model, constraints_of
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SamplingParams, SlotId, TokenId, TopToken

CHAT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"


def generate(
    runner: LlamaRunner, prompt: str, n_most: int, constraint: AnswerConstraint | None = None
) -> list[Sampled]:
    """Greedy, until an error or an end under the constraint, or nothing may follow; it is closed and the slot empty."""
    tokens = runner.model.tokenize(prompt)
    step = Step("prefill", (Slice(SlotId(0), 0, tokens, GREEDY, (), constraint),))
    drawn: list[Sampled] = []
    while len(drawn) < n_most:
        drawn += runner.run(step)
        generated = [sampled.token for sampled in drawn]
        if constraint is not None:
            if drawn[-1].is_end or drawn[-1].error is not None:
                break
            constraint.accept(generated[-1])
            if constraint.is_over:
                break
        start = len(tokens) + len(generated) - 1
        step = Step("decode", (Slice(SlotId(0), start, generated[-1:], GREEDY, generated, constraint),))
    if constraint is not None:
        constraint.close()
    runner.kv.trim(SlotId(0), 0)
    return drawn


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_a_chat_ends_by_itself(runner: LlamaRunner) -> None:
    drawn = generate(runner, CHAT, 15)
    ends = [sampled.is_end for sampled in drawn]
    assert any(ends)
    answer = b"".join(sampled.piece for sampled in drawn[: ends.index(True)]).decode()
    assert "Red" in answer
    assert drawn[ends.index(True)].piece == b""


@pytest.mark.model
def test_a_step_larger_than_a_batch_draws_the_same(runner: LlamaRunner, make_context: MakeContext) -> None:
    small = LlamaRunner(runner.model, make_context(n_batch=5, n_ubatch=5))
    prompt = runner.model.tokenize(CHAT * 3)
    step = Step("prefill", (slice_of(0, 0, prompt), slice_of(1, 0, prompt[3:20])))
    assert small.run(step) == runner.run(step)
    assert small.kv.count_tokens() == [len(prompt), 17]


@pytest.mark.model
@pytest.mark.parametrize(
    ("last", "error"),
    [(slice_of(1, 0, [TokenId(5)] * 200), NoRoom), (slice_of(1, 3, [TokenId(5)]), BadBatch)],
)
def test_a_step_that_fails_in_its_second_batch_keeps_nothing(
    model: Model, make_context: MakeContext, last: Slice, error: type[Exception]
) -> None:
    runner = LlamaRunner(model, make_context(n_ctx=256, n_batch=64))
    runner.run(Step("prefill", (slice_of(0, 0, [TokenId(5)] * 10, None),)))
    with pytest.raises(error):
        runner.run(Step("prefill", (slice_of(0, 10, [TokenId(5)] * 64, None), last)))
    assert runner.kv.count_tokens() == [10, 0]


def test_logits_that_are_not_numbers_are_that_slots_error(model_of_nan: Model, make_context: MakeContext) -> None:
    runner = LlamaRunner(model_of_nan, make_context(model_of_nan))
    [one, two] = runner.run(Step("prefill", (slice_of(0, 0, [TokenId(5)]), slice_of(1, 0, [TokenId(6)]))))
    assert one.error is not None
    assert "NaN" in one.error
    assert (one.slot, two.slot) == (0, 1)


def test_a_banned_logit_that_is_no_number_fails_a_job_that_asks_for_log_probabilities(
    tmp_path: Path, make_context: MakeContext
) -> None:
    """Sampling never looks at it; log-probabilities are those of the row as it is."""
    with loaded_on_cpu(write_tiny(tmp_path / "m.gguf", token_of_nan=END)) as model:
        runner = LlamaRunner(model, make_context(model))
        plain = SamplingParams(seed=1, temperature=0.0, ignore_eos=True)
        asking = replace(plain, logprobs=1)
        [one, two] = runner.run(
            Step("prefill", (slice_of(0, 0, [TokenId(5)], asking), slice_of(1, 0, [TokenId(6)], plain)))
        )
    assert one.error is not None
    assert "log-probabilities" in one.error
    assert two.error is None


# ── constraints and log-probabilities ───────────────────────────────────────────────────────────────


def constraint_of(model: Model, regex: str) -> AnswerConstraint:
    return constrain(constraints_of(model), regex=regex)


@pytest.mark.model
def test_a_constraint_leaves_the_draw_what_it_allows_and_ends_the_answer(runner: LlamaRunner) -> None:
    drawn = generate(runner, CHAT, 20, constraint_of(runner.model, r"\[[0-9]{2}\]"))
    assert re.fullmatch(rb"\[[0-9]{2}\]", b"".join(sampled.piece for sampled in drawn))


@pytest.mark.model
def test_a_constraint_that_the_model_follows_changes_no_token(runner: LlamaRunner) -> None:
    assert generate(runner, CHAT, 10, constraint_of(runner.model, r"(?s:.*)")) == generate(runner, CHAT, 10)


def test_a_complete_text_ends_where_the_vocabulary_has_no_end_token(tmp_path: Path, make_context: MakeContext) -> None:
    with loaded_on_cpu(write_tiny(tmp_path / "endless.gguf", has_end=False)) as model:
        drawn = generate(LlamaRunner(model, make_context(model)), "a", 20, constraint_of(model, "aa"))
        assert model.ends.size == 0
    assert [(sampled.piece, sampled.is_end) for sampled in drawn] == [(b"a", False), (b"a", False)]


def log_softmax(runner: LlamaRunner) -> NDArray[np.float64]:
    logits = runner.context.rows()[0].astype(np.float64)
    found: NDArray[np.float64] = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return found


@pytest.mark.model
def test_a_token_that_is_forced_is_reported_with_the_log_probability_it_has(runner: LlamaRunner) -> None:
    forced = Token(TokenId(5), runner.model.piece(TokenId(5)))
    slice_ = Slice(SlotId(0), 0, runner.model.tokenize(CHAT), replace(GREEDY, logprobs=0), forced=forced)
    [sampled] = runner.run(Step("prefill", (slice_,)))
    assert (sampled.token, sampled.piece) == (forced.id, forced.piece)
    assert sampled.logprob is not None
    assert sampled.logprob.token.logprob == pytest.approx(log_softmax(runner)[5])


@pytest.mark.model
@pytest.mark.parametrize("n_top", [None, 0, 5])
def test_log_probabilities_are_those_of_the_raw_logits_where_they_are_asked_for(
    runner: LlamaRunner, n_top: int | None
) -> None:
    sampling = SamplingParams(seed=3, temperature=1.7, repetition_penalty=1.5, top_k=40, logprobs=n_top)
    [sampled] = runner.run(Step("prefill", (slice_of(0, 0, runner.model.tokenize(CHAT), sampling),)))
    if n_top is None:
        assert sampled.logprob is None
        return
    assert sampled.logprob is not None
    token, expected = sampled.logprob.token, log_softmax(runner)
    assert token == TopToken(sampled.piece.decode(), sampled.token, token.logprob)
    assert token.logprob == pytest.approx(expected[sampled.token])
    best = np.argsort(-expected, kind="stable")[:n_top]
    assert [top.id for top in sampled.logprob.top] == best.tolist()
    assert [top.logprob for top in sampled.logprob.top] == pytest.approx(expected[best].tolist())


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


@given(
    shapes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 8)), max_size=6),
    n_batch=st.integers(1, 16),
)
def test_batches_hold_every_token_once_and_in_place(shapes: list[tuple[int, int]], n_batch: int) -> None:
    """(tokens, guesses among them) of each slice; what draws of one slice fits into a batch."""
    drafts = [min(n_drafts, n - 1, n_batch - 1) for n, n_drafts in shapes]
    slices = [
        Slice(SlotId(slot), 100, [TokenId(i) for i in range(n)], GREEDY, n_drafts=n_drafts)
        for slot, ((n, _), n_drafts) in enumerate(zip(shapes, drafts, strict=True))
    ]
    cut = list(batches(slices, n_batch))
    for batch in cut:
        assert sum(len(part.tokens) for part in batch) <= n_batch
        assert len({part.slot for part in batch}) == len(batch)
    parts = [part for batch in cut for part in batch]
    for slice_ in slices:
        own = [part for part in parts if part.slot == slice_.slot]
        assert [token for part in own for token in part.tokens] == slice_.tokens
        assert [part.start - 100 for part in own] == [part.tokens[0] for part in own]
        assert [part.sampling is not None for part in own] == [False] * (len(own) - 1) + [True]
        assert [part.n_drafts for part in own] == [0] * (len(own) - 1) + [slice_.n_drafts]
        assert own[-1].n_drafts < len(own[-1].tokens)
