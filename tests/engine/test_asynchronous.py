"""A step is reported while a device computes the next one: the reports are the same, in the same order."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import CELL_BYTES, Request
from tests.engine.rig import Rig
from tests.engine.test_loop_laws import CHEAP_ROWS, TROUBLED, requests
from worker.engine.step import Step
from worker.wire.jobs import JobKey, StepBegun, StepDone
from worker.wire.messages import Outbound

LAW = settings(max_examples=40)

SEED = 3
"""The toy model ends no answer early with this sampling."""

STEP, CANCEL, ABORT, NO_ROOM = "step", "cancel", "abort", "no room"
Act = Request | tuple[str, int]
ACTS = st.lists(
    requests() | st.tuples(st.sampled_from((STEP, STEP, STEP, CANCEL, ABORT, NO_ROOM)), st.integers(1, 6)),
    min_size=1,
    max_size=12,
)


class Timed(Rig):
    """A rig whose clock counts how often it is read, so that two engines that do the same read the same times."""

    def __init__(self, *, is_asynchronous: bool, has_drafts: bool = False, n_spare_cells: int = 60) -> None:
        reads = count()
        super().__init__(
            TROUBLED,
            n_slots=3,
            chunk=4,
            context_length=40,
            n_cells=40 + n_spare_cells,
            prefix_cache_bytes=500 * CELL_BYTES,
            n_retained=3,
            max_dead_cells=60,
            row_costs=CHEAP_ROWS if has_drafts else (),
            reports_blocks=True,
            is_asynchronous=is_asynchronous,
            clock=lambda: float(next(reads)),
        )
        self.n_begun = 0
        """The number of steps that the runner was given, also those that failed."""
        self.n_built: list[int] = []
        """The number of them when each frame was reported."""
        self.was_computing: list[bool] = []

    def _hear(self, frame: Outbound) -> None:
        self.n_built.append(self.n_begun)
        self.was_computing.append(self.runner.is_computing)
        super()._hear(frame)

    def _at_run(self, step: Step) -> None:
        super()._at_run(step)
        self.n_begun += 1

    def check(self) -> None:
        """Results that are not reported yet cannot be compared; the synchronous twin is checked at every step."""
        if not self.runner.is_asynchronous:
            super().check()

    def act(self, act: Act) -> None:
        if isinstance(act, Request):
            self.submit(act)
            return
        what, n = act
        if what == STEP:
            for _ in range(n):
                if not self.engine.is_idle:
                    self.step()
        elif what == CANCEL and self.stories:
            self.cancel(JobKey(n % len(self.stories)))
        elif what == ABORT:
            self.runner.n_kept_at_abort = n
            self.next_misfortune = "abort"
        elif what == NO_ROOM:
            self.next_misfortune = "no room"


@LAW
@given(acts=ACTS, has_drafts=st.booleans(), n_spare_cells=st.sampled_from((0, 20, 200)))
def test_the_front_hears_the_same_in_the_same_order(acts: list[Act], has_drafts: bool, n_spare_cells: int) -> None:
    rigs = [Timed(is_asynchronous=each, has_drafts=has_drafts, n_spare_cells=n_spare_cells) for each in (False, True)]
    for rig in rigs:
        for act in acts:
            rig.act(act)
        rig.run_until_idle()
        rig.check_stories()
    plain, overlapping = rigs
    assert plain.frames == overlapping.frames
    assert plain.runner.ran == overlapping.runner.ran


@LAW
@given(acts=ACTS)
def test_nothing_waits_for_longer_than_until_the_next_step_is_begun(acts: list[Act]) -> None:
    plain, overlapping = Timed(is_asynchronous=False), Timed(is_asynchronous=True)
    for act in acts:
        plain.act(act)
        overlapping.act(act)
        assert all(late - soon in (0, 1) for soon, late in zip(plain.n_built, overlapping.n_built, strict=False))
        if overlapping.engine.is_idle:
            assert overlapping.frames == plain.frames, "an idle engine has nothing left to report"
    assert not any(plain.was_computing)
    steps = zip(overlapping.frames, overlapping.was_computing, strict=True)
    assert not any(was_computing for frame, was_computing in steps if isinstance(frame, StepBegun)), (
        "the front knows whom to blame before anything can happen"
    )


def test_a_step_is_reported_while_the_next_one_is_computed() -> None:
    rig = Timed(is_asynchronous=True)
    rig.submit(Request((7, 8), max_tokens=6, seed=SEED))
    rig.run_until_idle()
    of_steps = [
        was_computing
        for frame, was_computing in zip(rig.frames, rig.was_computing, strict=True)
        if isinstance(frame, StepDone) and frame.kind is not None
    ]
    assert of_steps == [False, *[True] * 4, False], "not a first token, nor the last, behind which nothing runs"
