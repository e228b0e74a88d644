"""The engine's laws under chance: random arrivals, cancels at every stage, failing steps, and too few slots and cells.

The laws themselves stand in the rig (rig.py), which checks each step and frame as it happens.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.fake_runner import CELL_BYTES, Request, ToyModel
from tests.engine.rig import Rig
from tests.engine.toy_constraint import N_VOCAB
from worker.engine.checkpoints import Stops
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import JobKey, TokenId

LAW = settings(max_examples=150, stateful_step_count=40, report_multiple_bugs=False)

ENDS, UNDRAWABLE, POISON, UNSCORABLE = 1, 2, 3, 4
TROUBLED = ToyModel(
    ends=frozenset({ENDS}),
    undrawable=frozenset({UNDRAWABLE}),
    unscorable=frozenset({UNSCORABLE}),
    poison=frozenset({POISON}),
)
ALIKE = replace(TROUBLED, n_seen=4, poison=frozenset())
"""A model whose drawn tokens can be computed: earlier answers hold no other tokens."""

CHUNKS = (2, 4, 8)
CHEAP_ROWS = ((1, 1.0), (32, 1.1))
"""Drafts nearly always pay."""
N_SNAPSHOTS = 3
SMALL_HISTORY = 16 * 100
"""Bytes for a few answers."""
STOPS: tuple[tuple[str, ...], ...] = ((), (), ("bb",), ("cab", "a"), ("dda", "aab"))
PREDICTIONS = ((), (), (ENDS, *range(UNSCORABLE + 1, N_VOCAB)), (UNSCORABLE + 1, UNSCORABLE + 2) * 20)
"""Texts that answers are said to repeat, of all tokens that can be computed or of a few."""
SALTS = (b"", b"", b"", b"one", b"two")
LENGTHS = st.integers(1, 4) | st.integers(1, 3 * max(CHUNKS))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A prompt is drawn as its length and a number, not token by token: a failing example then shrinks in seconds."""
    n_prompt, start = draw(LENGTHS), draw(st.integers(0, 3))
    prompt = tuple(UNSCORABLE + 1 + (start + i * i) % (N_VOCAB - UNSCORABLE - 1) for i in range(n_prompt))
    trouble = draw(st.integers(0, 9))
    if trouble == 9:
        prompt = (*prompt, POISON)
    elif trouble == 8:
        prompt = (*prompt, UNSCORABLE, UNSCORABLE + 1)
    stop = draw(st.sampled_from(STOPS))
    return Request(
        prompt,
        draw(st.integers(0, 24)),
        stop,
        seed=draw(st.integers(0, 3)),
        constraint=draw(st.none() | st.integers(0, 5)),
        has_logprobs=draw(st.booleans()),
        prompt_logprobs=draw(st.none() | st.integers(0, 3)),
        prediction=draw(st.sampled_from(PREDICTIONS)),
        salt=draw(st.sampled_from(SALTS)),
    )


class Anything(RuleBasedStateMachine):
    """Random arrivals, cancels at every stage and failures, on few slots and cells."""

    rig: Rig
    context_length = 40
    reports_blocks = False

    @initialize(
        n_slots=st.integers(1, 6),
        n_spare_cells=st.sampled_from((0, 20, 60, 200, 400)),
        chunk=st.sampled_from(CHUNKS),
        widest_step=st.sampled_from((0, 32)),
        n_kept=st.sampled_from((0, 50, 500, 2000)),
        how=st.sampled_from(
            (
                *("as ever", "no retained slot", "on a device", "repetitive", "alike", "deterministic", "uncut"),
                *("with state", "deterministic with state", "repetitive with state", "alike with state"),
            )
        ),
    )
    def load(self, *, n_slots: int, n_spare_cells: int, chunk: int, widest_step: int, n_kept: int, how: str) -> None:
        self.rig = Rig(
            ALIKE if "alike" in how else replace(TROUBLED, n_seen=1 if "repetitive" in how else 0),
            n_slots=n_slots,
            chunk=chunk,
            context_length=self.context_length,
            n_cells=self.context_length + n_spare_cells,
            widest_step=widest_step,
            prefix_cache_bytes=n_kept * CELL_BYTES,
            can_share=how != "uncut",
            row_costs=CHEAP_ROWS if "repetitive" in how or "alike" in how else (),
            history_bytes=SMALL_HISTORY if "alike" in how else 0,
            max_undone=N_SNAPSHOTS if "state" in how else MAX_DRAFTS,
            is_deterministic="deterministic" in how,
            stops=Stops(
                stride=10,
                grain=chunk if "deterministic" in how else 1,
                message_ends={TokenId(9), TokenId(12)},
                min_apart=3,
            )
            if "state" in how
            else None,
            n_retained={"no retained slot": 0, "on a device": 3}.get(how, 0 if "state" in how else 1),
            max_dead_cells=60 if how == "on a device" else 0,
            reports_blocks=self.reports_blocks,
        )

    @rule(wanted=st.lists(requests(), min_size=1, max_size=4))
    def arrive(self, wanted: list[Request]) -> None:
        for request in wanted:
            self.rig.submit(request)

    @precondition(lambda self: not self.rig.engine.is_idle)
    @rule(n_steps=st.integers(1, 20))
    def go_on(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.rig.step()

    @precondition(lambda self: not self.rig.engine.is_idle)
    @rule(n_steps=st.integers(0, 12), from_oldest=st.integers(0, 7))
    def go_on_and_cancel_one(self, n_steps: int, from_oldest: int) -> None:
        """The job is waiting, in prefill or decoding."""
        self.go_on(n_steps)
        alive = [JobKey(job) for job, story in enumerate(self.rig.stories) if not story.is_over]
        if alive:
            self.rig.cancel(alive[from_oldest % len(alive)])

    @precondition(lambda self: self.rig.stories)
    @rule(job=st.integers(0, 9))
    def cancel_whatever_became_of_it(self, job: int) -> None:
        self.rig.cancel(JobKey(job % len(self.rig.stories)))

    @precondition(lambda self: not self.rig.engine.is_idle)
    @rule(n_steps=st.integers(0, 12), n_kept=st.integers(0, 8))
    def go_on_and_abort_a_step(self, n_steps: int, n_kept: int) -> None:
        self.go_on(n_steps)
        self.rig.runner.n_kept_at_abort = n_kept
        self.rig.next_misfortune = "abort"

    @precondition(lambda self: not self.rig.engine.is_idle)
    @rule(n_steps=st.integers(0, 12))
    def go_on_and_refuse_a_step_its_cells(self, n_steps: int) -> None:
        self.go_on(n_steps)
        self.rig.next_misfortune = "no room"

    @invariant()
    def nothing_is_lost(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        """The jobs that were accepted must come to their end, also if Hypothesis has stopped early."""
        if hasattr(self, "rig"):
            self.rig.run_until_idle()
            self.rig.check_stories()


@pytest.mark.long
def test_whatever_happens_every_job_ends_once_with_the_output_it_has_alone() -> None:
    run_state_machine_as_test(Anything, settings=LAW)


def test_a_job_that_waits_in_its_slot_for_its_prefix_may_lose_it_after_a_younger_one_has_begun() -> None:
    """A long search has found this story. Job 2 waits for the prefix that job 1 computes, job 3 begins, then the cells
    run out."""
    prefix = (8, 9, 12, 17, 24, 33, 44, 57, 13, 30, 49, 11, 34, 59, 27, 56, 28, 61, 37, 15)
    state = Anything()
    state.load(n_slots=5, widest_step=0, n_kept=0, how="no retained slot", n_spare_cells=60, chunk=4)
    wanted = [
        Request(tuple(token - 1 for token in prefix), 20, prompt_logprobs=0),
        Request((*prefix, 54, 36, 20, 6, 3), 23, constraint=3, prediction=(5, 6) * 20),
        Request(prefix, 10, ("bb",), has_logprobs=True),
        Request((5, 6, 3), 4, ("bb",), seed=3),
    ]
    state.arrive(wanted=wanted)
    state.go_on_and_refuse_a_step_its_cells(n_steps=12)
    state.go_on_and_cancel_one(from_oldest=0, n_steps=5)
    state.teardown()
