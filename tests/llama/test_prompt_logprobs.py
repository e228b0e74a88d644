"""Log-probabilities of prompts on the real library: the bits of the same tokens' when they were generated."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from msgspec.structs import replace as with_changes

from parity.llama.scoring import Scorer, Setup
from tests.llama.conftest import GREEDY, MakeContext, slice_of
from tests.llama.served import Served
from worker.engine.config import EngineConfig
from worker.engine.sampling.sample import log_probabilities
from worker.engine.sequence import NO_SCORE
from worker.engine.step import MAX_TOPS, BadBatch, Score, Scoring, Slice, Step
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, Logprob, SamplingParams, SlotId, TokenId

pytestmark = pytest.mark.model

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 3
N_CELLS = 1024
SERVING = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 512, "n_seq_max": 5, "type_k": "bf16", "flash_attn": "on"}
LOGPROBS = SamplingParams(seed=0, temperature=0.0, logprobs=MAX_TOPS, ignore_eos=True)


@dataclass(frozen=True)
class Asked:
    prompt: list[TokenId]
    max_tokens: int = 0
    n_top: int | None = MAX_TOPS


def served_by(runner: LlamaRunner, chunk: int = 32, *, is_deterministic: bool = False) -> Served:
    config = EngineConfig(
        n_slots=4,
        n_cells=N_CELLS,
        context_length=N_CELLS,
        chunk=chunk,
        prefix_cache_bytes=2**27,
        retained_slots=(SlotId(4),),
        is_deterministic=is_deterministic,
    )
    return Served(runner, config, LOGPROBS)


def scores(served: Served, *asked: Asked) -> list[list[Logprob]]:
    """The log-probabilities of the prompts, which are computed side by side."""
    jobs = [served.submit(one.prompt, one.max_tokens, one.n_top) for one in asked]
    served.run()
    return [served.prompts[job] for job in jobs]


@pytest.fixture
def serve(model: Model, make_context: MakeContext) -> Callable[..., Served]:
    return lambda *chunk: served_by(LlamaRunner(model, make_context(**SERVING)), *chunk)


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("chunk", [16, 64])
def test_what_was_generated_is_scored_with_the_same_bits(
    model: Model, serve: Callable[..., Served], chunk: int
) -> None:
    served = serve(chunk)
    prompt = model.tokenize(STORY)
    [scored] = scores(served, Asked(prompt, max_tokens=40))
    generated = served.generated[JobKey(0)]
    longer = Asked([*prompt, *served.answer(JobKey(0))])
    [alone] = scores(serve(chunk), longer)
    assert alone == scored + generated
    assert len(alone) == len(prompt) + 39


@pytest.mark.usefixtures("default_model")
def test_they_are_those_of_the_parity_harness(model: Model, served: Served) -> None:
    prompt = model.tokenize(STORY)
    [scored] = scores(served, Asked(prompt))
    setup = Setup(type_k="bf16", type_v="f16", flash_attn="on", n_rows=64)
    with Scorer(model, setup, n_ctx=len(prompt), n_threads=1) as scorer:
        rows = scorer.logits(prompt)
    for row, token, known in zip(rows, prompt[1:], scored, strict=False):
        logprob, tops = log_probabilities(row, token, MAX_TOPS)
        assert (known.token.id, known.token.logprob) == (token, logprob)
        assert [(top.id, top.logprob) for top in known.top] == tops


@pytest.mark.usefixtures("default_model")
def test_under_any_load_and_from_the_cache_they_are_the_same(
    model: Model, serve: Callable[..., Served], served: Served
) -> None:
    story = model.tokenize(STORY)
    asked = [Asked(story + model.tokenize(text), 3 * (i % 2)) for i, text in enumerate(("Then", "The end", "Far", "A"))]
    plain = Asked(story[5:90], max_tokens=20, n_top=None)
    alone = [scores(serve(), one)[0] for one in asked]
    assert scores(served, plain, *asked, plain, *asked) == [[], *alone, [], *alone]
    assert scores(served, *asked[::-1]) == alone[::-1]
    [few] = scores(served, replace(asked[0], n_top=2))
    assert few == [with_changes(one, top=one.top[:2]) for one in alone[0]]


def test_fixed_chunks_are_scored_whole(model: Model, make_context: MakeContext, served: Served) -> None:
    """A chunk has 64 rows; drafts have room for 21."""
    prompt = model.tokenize(STORY)
    runner = LlamaRunner(model, make_context(**SERVING, n_rows=64))
    fixed = served_by(runner, chunk=64, is_deterministic=True)
    assert scores(fixed, Asked(prompt)) == scores(served, Asked(prompt))
    assert scores(fixed, Asked(prompt[:130])) == [fixed.prompts[JobKey(0)][:129]]


def score(runner: LlamaRunner, tokens: list[TokenId], slot: int = 0) -> list[Score]:
    scoring = Scoring(tokens[1:], [NO_SCORE])
    runner.run(Step("prefill", (Slice(SlotId(slot), 0, tokens, GREEDY, scoring=scoring),)))
    return scoring.scores


def test_a_step_larger_than_a_batch_scores_the_same(model: Model, make_context: MakeContext) -> None:
    small, large = LlamaRunner(model, make_context(n_batch=5)), LlamaRunner(model, make_context(n_rows=61))
    tokens = model.tokenize(STORY)[:61]
    assert small.context.n_batch < 61
    assert score(small, tokens) == score(large, tokens)
    assert len(score(small, tokens, slot=1)) == 61


@pytest.mark.parametrize(
    ("n_tokens", "targets", "message"),
    [
        (34, [TokenId(5)] * 34, "logits of 34 tokens; a batch has at most 33"),
        (4, [TokenId(5)] * 2, "2 tokens cannot be scored behind 4"),
        (4, [TokenId(5)] * 5, "5 tokens cannot be scored behind 4"),
        (1, [TokenId(10**6)], "a token outside the vocabulary"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_library_sees_it(
    model: Model, make_context: MakeContext, n_tokens: int, targets: list[TokenId], message: str
) -> None:
    """More rows than there are would abort the process."""
    runner = LlamaRunner(model, make_context())
    slice_ = Slice(SlotId(0), 0, [TokenId(5)] * n_tokens, scoring=Scoring(targets, [NO_SCORE]))
    with pytest.raises(BadBatch, match=message):
        runner.run(Step("prefill", (slice_,)))
    assert runner.kv.n_cells(SlotId(0)) == 0


def test_a_row_that_is_no_distribution_fails_a_job_that_asks_for_log_probabilities(
    model_of_nan: Model, make_context: MakeContext
) -> None:
    runner = LlamaRunner(model_of_nan, make_context(model_of_nan))
    scoring = Scoring([TokenId(6)], [NO_SCORE])
    asking = Slice(SlotId(0), 0, [TokenId(5)], scoring=scoring)
    [failed] = runner.run(Step("prefill", (asking, slice_of(1, 0, [TokenId(6)] * 3, None))))
    assert failed.error is not None
    assert "log-probabilities" in failed.error
    assert scoring.scores == [NO_SCORE]
