"""The tokens of running jobs come in time while long prompts are read: modelled machines, real engine."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest

from tests.engine.fake_runner import FakeRunner, ToyModel
from tests.queued import queued
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.step import Slice, Step
from worker.wire.jobs import JobKey, SamplingParams, SlotId, StepDone, TokenId
from worker.wire.messages import Outbound

TARGET_S = 0.150
N_CELLS = 4_000
N_UBATCH = 512


@dataclass(frozen=True, slots=True)
class Machine:
    """The time of a step: the weights are read once, each row computes, and looks at all cells before it."""

    step_s: float
    row_s: float
    cell_s: float
    """The seconds that a row takes for each cell before it."""

    def chunk(self) -> int:
        """The chunk that the warm-up chooses."""
        return max(
            (size for size in (16, 32, 64, 128, 256, 512) if self.step_s + size * self.row_s < TARGET_S), default=16
        )

    def took_s(self, step: Step) -> float:
        return self.step_s + step.n_tokens * (self.row_s + step.depth * self.cell_s)

    def prompt_s(self, n_prompt: int) -> float:
        """The time of a prompt that is read in micro-batches, with nothing between them."""
        starts = range(0, n_prompt, N_UBATCH)
        return sum(
            self.took_s(Step("prefill", (Slice(SlotId(0), start, [TokenId(0)] * min(N_UBATCH, n_prompt - start)),)))
            for start in starts
        )


SMALL_ON_TWO_CORES = Machine(4e-3, 3.1e-3, 1.4e-6)
ON_MANY_CORES = Machine(2e-3, 0.4e-3, 0.3e-6)
LARGE = Machine(30e-3, 4e-3, 2e-6)
VERY_LARGE = Machine(150e-3, 25e-3, 6e-6)


def engine_for(
    machine: Machine,
    n_streams: int,
    *,
    clock: Callable[[], float],
    emit: Callable[[Outbound], None] = lambda _: None,
) -> tuple[Engine, FakeRunner]:
    """An engine with slots for n streams and one prompt."""
    chunk = machine.chunk()
    config = EngineConfig(
        n_slots=n_streams + 1,
        n_cells=N_CELLS,
        context_length=N_CELLS,
        chunk=chunk,
        widest_step=N_UBATCH,
        chunk_s=machine.prompt_s(chunk),
        itl_target_s=TARGET_S,
        retained_slots=(SlotId(n_streams + 1),),
    )
    runner = FakeRunner.of(ToyModel(n_seen=1), config)
    return Engine(runner, config, emit=emit, clock=clock), runner


@dataclass(frozen=True, slots=True)
class Late:
    """A prompt that arrived beside streams, and what became of it."""

    wait_s: float
    gaps_s: list[float]
    """The gaps between the streams' decode steps until it had been read."""
    sizes: list[int]
    """The sizes of the prefill steps that read it."""


def read_late(machine: Machine, n_streams: int, n_prompt: int, seed: int) -> Late:
    """No step takes exactly what it should: a twentieth less to a twentieth more."""
    rng = Random(seed)
    now_s = 0.0
    decoded_at_s: list[float] = []
    sizes: list[int] = []

    def take_time(step: Step) -> None:
        nonlocal now_s
        now_s += machine.took_s(step) * rng.uniform(0.95, 1.05)
        if step.kind == "prefill":
            sizes.append(step.n_tokens)

    def hear(frame: Outbound) -> None:
        if isinstance(frame, StepDone) and frame.kind == "decode":
            decoded_at_s.append(frame.sampled_at_s)

    engine, runner = engine_for(machine, n_streams, clock=lambda: now_s, emit=hear)
    runner.before_run = take_time
    for job in range(n_streams):
        engine.submit(queued(JobKey(job), [TokenId(2 + job)] * 30, 1_000, SamplingParams(seed=job)))
    while len(decoded_at_s) < 5:
        engine.step()
    before, sent_s = len(decoded_at_s), now_s
    sizes.clear()
    engine.submit(queued(JobKey(n_streams), [TokenId(50 + i % 40) for i in range(n_prompt)], 8, SamplingParams(seed=1)))
    late = engine.scheduler.find(JobKey(n_streams))
    assert late is not None
    while not late.generated:
        engine.step()
    wait_s = now_s - sent_s
    engine.step()
    times = decoded_at_s[before - 1 :]
    return Late(wait_s, [after - earlier for earlier, after in pairwise(times)], sizes)


@pytest.mark.long
@pytest.mark.parametrize("machine", [SMALL_ON_TWO_CORES, ON_MANY_CORES, LARGE])
@pytest.mark.parametrize(("n_streams", "n_prompt"), [(1, 200), (3, 1_200), (8, 1_600)])
def test_no_gap_is_longer_than_one_and_a_half_targets_or_a_tenth_of_the_prompt(
    machine: Machine, n_streams: int, n_prompt: int
) -> None:
    """A server that reads prompts first would let its streams wait for all of it."""
    longest_s = max(1.5 * TARGET_S, 0.1 * machine.prompt_s(n_prompt))
    for seed in range(4):
        gaps_s = read_late(machine, n_streams, n_prompt, seed).gaps_s
        assert max(gaps_s) <= longest_s
        is_long = len(gaps_s) > 3
        assert not is_long or sum(gaps_s) / len(gaps_s) > 0.9 * TARGET_S, "the prompt is read as fast as that allows"


@pytest.mark.parametrize(
    ("machine", "n_streams", "n_prompt", "most"),
    [
        (SMALL_ON_TWO_CORES, 1, 200, 1.1),
        (SMALL_ON_TWO_CORES, 3, 1_200, 1.15),
        (ON_MANY_CORES, 3, 1_200, 1.1),
        (LARGE, 3, 1_200, 1.25),
        (VERY_LARGE, 3, 1_200, 1.75),
    ],
)
def test_a_late_prompt_hardly_waits_longer_than_if_no_job_generated(
    machine: Machine, n_streams: int, n_prompt: int, most: float
) -> None:
    for seed in range(3):
        assert read_late(machine, n_streams, n_prompt, seed).wait_s <= most * machine.prompt_s(n_prompt)


@pytest.mark.parametrize("n_streams", [1, 3, 8])
def test_a_large_models_prompts_are_not_read_in_crumbs(n_streams: int) -> None:
    """Its weights are read with every step: a step needs enough tokens for these to take longer."""
    *sizes, _last = read_late(VERY_LARGE, n_streams, 1_200, seed=0).sizes
    assert min(sizes) * VERY_LARGE.row_s > VERY_LARGE.step_s


WITHOUT_DEPTH = Machine(30e-3, 4e-3, 0.0)
"""A step takes the same wherever it lies, so that more decode steps between two prefill steps change nothing."""


def prefill_sizes(share_aborted: float, seed: int = 0) -> list[int]:
    """Tokens of the prefill steps that ran, until a long prompt is read beside one stream.

    Of all runs since the prompt arrived that share is aborted, and takes no time.
    """
    now_s = 0.0
    sizes: list[int] = []
    rng = Random(seed)
    engine, runner = engine_for(WITHOUT_DEPTH, n_streams=1, clock=lambda: now_s)

    def take_time(step: Step) -> None:
        nonlocal now_s
        if engine.scheduler.find(JobKey(1)) and rng.random() < share_aborted:
            runner.request_abort()
            return
        now_s += WITHOUT_DEPTH.took_s(step)
        if step.kind == "prefill":
            sizes.append(step.n_tokens)

    runner.before_run = take_time
    engine.submit(queued(JobKey(0), [TokenId(2)], 1_000, SamplingParams(seed=0)))
    for _ in range(3):
        engine.step()
    engine.submit(queued(JobKey(1), [TokenId(50 + i % 40) for i in range(800)], 8, SamplingParams(seed=1)))
    late = engine.scheduler.find(JobKey(1))
    assert late is not None
    while not late.generated:
        engine.step()
    return sizes


@pytest.mark.parametrize("share_aborted", [0.1, 0.5, 0.9])
def test_a_step_that_was_aborted_says_nothing_of_what_steps_take(share_aborted: float) -> None:
    """It ends at once. If that counted, the next one, which runs, would be up to twice as long as fits."""
    undisturbed = prefill_sizes(0.0)
    assert len(undisturbed) > 10
    assert prefill_sizes(share_aborted) == undisturbed
