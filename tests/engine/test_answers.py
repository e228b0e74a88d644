"""Reasoning budgets and sleeping constraints in the engine.

Beside other jobs, with drafts and pauses, an answer has the tokens that it has alone.

The constraints are real, over a made vocabulary; the model is scripted.
"""

from collections.abc import Sequence as Seq
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.made_vocabulary import END, MadeVocabulary
from tests.engine.fake_runner import FakeRunner, ToyModel
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.config import EngineConfig
from worker.engine.families import marks_among
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.engine.step import Sampled
from worker.wire.jobs import Finished, JobKey, SamplingParams, SlotId, StepDone, Submit, TokenId
from worker.wire.messages import Outbound
from worker.wire.prompts import OfferedTool, Tools

VOCABULARY = MadeVocabulary((), ["<think>", "</think>", "<tool_call>", "\n\n", '{"', '"}'])
MARKS = marks_among(VOCABULARY.controls, VOCABULARY.words)
THINK, CLOSE, CALL = (VOCABULARY.words[word] for word in ("<think>", "</think>", "<tool_call>"))
LIKED = [THINK, CLOSE, CALL, *map(TokenId, b'ab1"}')]
"""The tokens that the model prefers."""
TOOL = OfferedTool(
    name="get",
    place=0,
    parameters='{"properties": {"n": {"enum": [1, 11]}, "s": {"type": "string", "maxLength": 3}}, "required": ["n"]}',
)
CONSTRAINTS = Constraints(VOCABULARY.vocabulary(), give_back=lambda: None, marks=MARKS)
CHEAP_ROWS = tuple((n_rows, 1.0 + n_rows / 1000) for n_rows in (1, 2, 4, 8, 16, 32))
N_TOKENS = 60


class Liking(ToyModel):
    """Draws what it likes, by its last tokens, so that texts repeat themselves and drafts are right."""

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int, constraint: Any = None) -> Sampled:
        number = crc32(repr((seed, list(held[-2:]), len(held) // 12)).encode())
        mask = None if constraint is None else constraint.allowed()
        liked = [token for token in LIKED if mask is None or mask[token]]
        if not liked:
            assert mask is not None
            liked = [TokenId(int(token)) for token in np.flatnonzero(mask)]
        token = liked[number % len(liked)]
        if constraint is not None:
            token = constraint.settled(token)
        return Sampled(slot, token, VOCABULARY.pieces[token], is_end=token == VOCABULARY.controls[END])


def submit_of(job: int, budget: int | None, tools: Tools | None) -> Submit:
    return Submit(
        job=JobKey(job),
        prompt="",
        sampling=SamplingParams(seed=job % 5, max_tokens=N_TOKENS),
        marks="split",
        tools=tools,
        reasoning_budget=budget,
    )


def answers_of(submits: Seq[Submit], *, n_cells: int, has_drafts: bool) -> list[tuple[list[TokenId], Finished]]:
    """The tokens and the end of each job."""
    frames: list[Outbound] = []
    runner = FakeRunner(Liking(), n_slots=5, n_cells=n_cells, chunk=8)
    config = EngineConfig(
        n_slots=4,
        n_cells=n_cells,
        context_length=n_cells,
        chunk=8,
        retained_slots=(SlotId(4),),
        row_costs=CHEAP_ROWS if has_drafts else (),
    )
    engine = Engine(runner, config, emit=frames.append, clock=lambda: float(len(frames)), marks=MARKS)
    generated = []
    for submit in submits:
        constraint = CONSTRAINTS.constrain(submit)
        assert constraint is None or isinstance(constraint, AnswerConstraint)
        prompt = [TokenId(97), THINK] if submit.job % 2 else [TokenId(97)]
        engine.submit(Queued(submit, prompt, constraint, []))
        sequence = engine.scheduler.find(submit.job)
        assert sequence is not None
        generated.append(sequence.generated)
    while not engine.is_idle:
        engine.step()
    ends = {end.job: end for frame in frames if isinstance(frame, StepDone) for end in frame.finished}
    return [(tokens, ends[submit.job]) for submit, tokens in zip(submits, generated, strict=True)]


def reasoning_of(tokens: Seq[TokenId], *, is_opened: bool) -> tuple[int, int]:
    """The number of tokens of reasoning, without markers and with them."""
    is_reasoning, n_inside, n_all = is_opened, 0, 0
    for token in tokens:
        n_inside += is_reasoning and token not in (CLOSE, THINK)
        n_all += is_reasoning or token in (CLOSE, THINK)
        is_reasoning = token == THINK or (is_reasoning and token != CLOSE)
    return n_inside, n_all


asked_tools = st.sampled_from(
    [None, Tools(tools=(TOOL,)), Tools(tools=(TOOL,), is_required=True), Tools(tools=(TOOL,), is_parallel=False)]
)


@settings(max_examples=60)
@given(
    jobs=st.lists(st.tuples(st.none() | st.integers(0, 12), asked_tools), min_size=1, max_size=6),
    n_cells=st.integers(2 * N_TOKENS, 6 * N_TOKENS),
)
def test_an_answer_has_the_same_tokens_next_to_other_jobs_with_drafts_and_pauses(
    jobs: list[tuple[int | None, Tools | None]], n_cells: int
) -> None:
    submits = [submit_of(job, *asked) for job, asked in enumerate(jobs)]
    together = answers_of(submits, n_cells=n_cells, has_drafts=True)
    for submit, (tokens, end) in zip(submits, together, strict=True):
        [(alone, end_alone)] = answers_of([submit], n_cells=6 * N_TOKENS, has_drafts=False)
        assert tokens == alone
        assert (end.reason, end.n_reasoning) == (end_alone.reason, end_alone.n_reasoning)


@settings(max_examples=60)
@given(job=st.integers(0, 9), budget=st.none() | st.integers(0, 12), tools=asked_tools)
def test_no_answer_has_more_reasoning_than_its_budget_and_all_of_it_is_counted(
    job: int, budget: int | None, tools: Tools | None
) -> None:
    [(tokens, end)] = answers_of([submit_of(job, budget, tools)], n_cells=6 * N_TOKENS, has_drafts=True)
    n_inside, n_all = reasoning_of(tokens, is_opened=job % 2 == 1)
    assert budget is None or n_inside <= budget
    assert end.n_reasoning == n_all
