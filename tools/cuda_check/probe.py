"""The times of a device's steps and copies, with the device waited for: what a slow worker on it is slow at.

The steps are a runner's own, without the engine and its scheduling; nothing is filled up and no width is held, so that
each width shows its own kernels. Runs in one process, on one thread.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np

from tools.cuda_check.report import Figure
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.engine.step import Slice, Step
from worker.llama.batch import RowGroups
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import LoadedRunner, load_runner
from worker.wire.jobs import SamplingParams, SlotId, StepKind, TokenId

N_SLOTS = 32
_GREEDY = SamplingParams(seed=0, temperature=0.0, ignore_eos=True)
_N_FIRST = 8
"""The cells that each row has before its steps are timed."""
_N_SETTLING = 3
"""Steps of a width that are not counted: on a GPU the first runs without a graph, the second captures one."""
_N_PREFILLS = 4
_N_COPIES = 4
_N_BESIDE = 8
"""The jobs that generate together before one of them is copied out."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a probe, all in tokens, rows or cells."""

    n_cells: int = 16_384
    prompts: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 534, 1024, 2048)
    widths: tuple[int, ...] = tuple(range(1, N_SLOTS + 1))
    switched: tuple[int, ...] = (2, 4, 8, 32)
    """The widths of one step among steps of one token."""
    dead: tuple[int, ...] = (1024, 4096, 8192)
    """The cells of finished jobs that lie beside the steps."""
    beside_dead: tuple[int, ...] = (1, 16)
    copied: tuple[int, ...] = (181, 541)
    n_generated: int = 96
    n_steps: int = 30
    """The steps of which a time is the median."""


USUAL = Sizes()
SMALL = Sizes(1024, (16, 32), (1, 2, 9), (2,), (256,), (1,), (40,), n_generated=4, n_steps=3)
"""The sizes for testing the round."""


@dataclass(frozen=True, slots=True)
class Times:
    """The parts of one step."""

    submit_s: float
    """The time until llama_decode has returned. On a CPU it computes all the while."""
    wait_s: float
    """The time from then until the device is done."""
    draw_s: float
    """The rest: the batch filled in, the tokens drawn."""

    @property
    def step_s(self) -> float:
        return self.submit_s + self.wait_s + self.draw_s


def probe(model: Path, device: str, sizes: Sizes) -> Iterator[Figure]:
    """Every part, one figure after another as it is found. Raises: ModelLoadFailed, InsufficientMemory."""
    settings = Settings(device=device, parallel=N_SLOTS, ctx_size=sizes.n_cells)
    began_s = time.perf_counter()
    loaded = load_runner(configure(settings, model), lambda _: None)
    load = Figure(what="load", value=time.perf_counter() - began_s, unit="s")
    try:
        for figure in chain([load], _facts(loaded), _parts(loaded.runner, sizes)):
            yield msgspec.structs.replace(figure, model=model.name)
    finally:
        loaded.runner.close()


def _facts(loaded: LoadedRunner) -> Iterator[Figure]:
    """The choices of the warm-up."""
    shapes = loaded.shapes
    yield Figure(what="tokens of a prefill step, beside other jobs", value=shapes.chunk)
    yield Figure(what="tokens of a prefill step, alone", value=loaded.widest_step)
    yield _ms("change of width there and back, as the warm-up has it", shapes.switch_s)
    for width, filled in shapes.padded_widths:
        yield Figure(what=f"rows of a step of {width}, filled up", value=filled)
    yield Figure(what="cells of finished jobs that may stay", value=shapes.retention.max_dead_cells)


def _parts(runner: LlamaRunner, sizes: Sizes) -> Iterator[Figure]:
    steps = Steps(runner, sizes.n_steps)
    yield from _prompts(steps, sizes)
    yield from _widths(steps, sizes)
    yield from _switches(steps, sizes)
    if runner.kv.can_cut:
        yield from _dead_cells(steps, sizes)
    if runner.kv.can_share:
        yield from _copies(steps, sizes)


class Steps:
    """Steps of random tokens, each slot behind what it has already."""

    def __init__(self, runner: LlamaRunner, n_steps: int) -> None:
        runner.context.row_groups = RowGroups()
        self.kv = runner.kv
        self._runner = runner
        self._n_steps = n_steps
        self._chance = np.random.default_rng(0)

    def fill(self, slot: int, n_cells: int) -> None:
        """Read until the slot has `n_cells` cells. A token is drawn at a step's end: only that waits for a device."""
        while (n_more := n_cells - self.kv.n_cells(SlotId(slot))) > 0:
            self._run("prefill", [self._slice(slot, min(n_more, self._runner.context.n_ubatch))])

    def begin(self, slots: Iterable[int]) -> None:
        """Empty the memory but for a few cells of each slot."""
        self.kv.clear()
        for slot in slots:
            self.fill(slot, _N_FIRST)

    def settled(self, step: Callable[[], Times]) -> list[Times]:
        for _ in range(_N_SETTLING):
            step()
        return [step() for _ in range(self._n_steps)]

    def rows(self, slots: Iterable[int]) -> Times:
        """A decode step with a token of each slot."""
        return self._run("decode", [self._slice(slot, 1) for slot in slots])

    def wide(self, width: int) -> Times:
        """A decode step of one slot; all but one of its tokens are drafts, which are taken back."""
        slot = SlotId(0)
        n_kept = self.kv.n_cells(slot) + 1
        times = self._run("decode", [self._slice(slot, width, n_drafts=width - 1)])
        if width > 1:
            self.kv.trim(slot, n_kept)
        return times

    def _slice(self, slot: int, n_tokens: int, n_drafts: int = 0) -> Slice:
        tokens = [TokenId(id_) for id_ in self._chance.integers(0, self._runner.model.n_vocab, n_tokens).tolist()]
        start = self.kv.n_cells(SlotId(slot))
        return Slice(SlotId(slot), start, tokens, _GREEDY, n_drafts=n_drafts)

    def _run(self, kind: StepKind, slices: Sequence[Slice]) -> Times:
        submitted_s: list[float] = []
        decoded_s, began_s = self._runner.context.decoding_s, time.perf_counter()
        self._runner.run(Step(kind, tuple(slices)), lambda: submitted_s.append(time.perf_counter() - began_s))
        step_s = time.perf_counter() - began_s
        decode_s = self._runner.context.decoding_s - decoded_s
        submit_s = min([decode_s, *submitted_s])
        return Times(submit_s, decode_s - submit_s, step_s - decode_s)


def _prompts(steps: Steps, sizes: Sizes) -> Iterator[Figure]:
    """The first step of a size also loads its kernels."""
    for n_tokens in sizes.prompts:
        taken_s = []
        for _ in range(_N_PREFILLS):
            steps.kv.clear()
            began_s = time.perf_counter()
            steps.fill(0, n_tokens)
            taken_s.append(time.perf_counter() - began_s)
        first_s, *others_s = taken_s
        yield _ms(f"prompt of {n_tokens}, the first", first_s)
        yield _ms(f"prompt of {n_tokens}", min(others_s))
        yield Figure(what=f"prompt of {n_tokens}, rate", value=n_tokens / min(others_s), unit="tokens/s")


def _widths(steps: Steps, sizes: Sizes) -> Iterator[Figure]:
    for width in sizes.widths:
        steps.begin(range(width))
        settled = steps.settled(partial(steps.rows, range(width)))
        yield _ms(f"step of {width}", median(one.step_s for one in settled))
        for part in ("submit", "wait", "draw"):
            yield _ms(f"step of {width}: {part}", median(getattr(one, f"{part}_s") for one in settled))


def _switches(steps: Steps, sizes: Sizes) -> Iterator[Figure]:
    """The surplus of one step of another width, of a slot with drafts, and of the steps of one token behind it."""

    def steady_s(width: int) -> float:
        steps.begin([0])
        return median(one.step_s for one in steps.settled(lambda: steps.wide(width)))

    one_s = steady_s(1)
    for width in sizes.switched:
        pattern = (width, *(1,) * (1 + _N_SETTLING))
        plain_s = steady_s(width) + (len(pattern) - 1) * one_s
        steps.begin([0])
        rounds = [sum(steps.wide(each).step_s for each in pattern) for _ in range(1 + sizes.n_steps // len(pattern))]
        yield _ms(f"one step of {width} among steps of 1, surplus", fmean(rounds[1:] or rounds) - plain_s)


def _dead_cells(steps: Steps, sizes: Sizes) -> Iterator[Figure]:
    for n_dead in (0, *sizes.dead):
        for n_rows in sizes.beside_dead:
            steps.begin(range(n_rows))
            steps.fill(N_SLOTS - 1, n_dead)
            settled = steps.settled(partial(steps.rows, range(n_rows)))
            yield _ms(f"step of {n_rows} beside {n_dead} unused cells", median(one.step_s for one in settled))


def _copies(steps: Steps, sizes: Sizes) -> Iterator[Figure]:
    """A prompt lies in one run of cells. Of a job that generated while others did, each token is a run."""
    for n_cells in sizes.copied:
        steps.kv.clear()
        steps.fill(0, n_cells)
        out_s, in_s, n_bytes = _copied(steps, n_cells)
        yield Figure(what=f"copy of {n_cells} cells in one run", value=n_bytes, unit="bytes")
        yield _ms(f"copy out of {n_cells} cells in one run", out_s)
        yield _ms(f"copy in of {n_cells} cells in one run", in_s)
    steps.begin(range(_N_BESIDE))
    for _ in range(sizes.n_generated):
        steps.rows(range(_N_BESIDE))
    out_s, _, _ = _copied(steps, 0)
    yield _ms(f"copy out of a job with {sizes.n_generated} tokens generated beside {_N_BESIDE - 1} others", out_s)


def _copied(steps: Steps, n_back: int) -> tuple[float, float, int]:
    """The seconds of a copy of the first slot's cells out, and of `n_back` of them into another, and its bytes."""
    out_s, in_s = [], [0.0] if not n_back else []
    n_bytes = 0
    for _ in range(_N_COPIES):
        began_s = time.perf_counter()
        saved = steps.kv.save(SlotId(0), 0)
        out_s.append(time.perf_counter() - began_s)
        n_bytes = saved.n_bytes
        if n_back:
            began_s = time.perf_counter()
            steps.kv.load(SlotId(1), [saved], n_back)
            in_s.append(time.perf_counter() - began_s)
            steps.kv.trim(SlotId(1), 0)
    return median(out_s), median(in_s), n_bytes


def _ms(what: str, seconds: float) -> Figure:
    return Figure(what=what, value=1e3 * seconds, unit="ms")
