"""The first steps of a runner: they touch weights and buffers, and their times choose the shapes of all later ones.

It leaves the memory as new, so that no later answer is another one. Runs on the thread that will run the steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from worker.engine.prefill_budget import MIN_CHUNK, WIDENING
from worker.engine.step import Slice, Step
from worker.limits import MAX_DRAFTS
from worker.llama.batch import RowGroups
from worker.llama.held_width import HeldWidth
from worker.llama.runner import LlamaRunner
from worker.models.plan.memory import DEFAULT_UBATCH, DETERMINISTIC_CHUNK
from worker.models.upstream.numbers import CELL_STEP
from worker.wire.jobs import SamplingParams, SlotId, StepKind, TokenId
from worker.wire.load import PaddedWidths, RowCosts

_MAX_CHUNK = 512
"""The longest chunk on a CPU. On a GPU a chunk may be as long as a micro-batch."""

WIDTHS = (1, 2, 4, 8, 16, 1 + MAX_DRAFTS)
"""The tokens in the decode steps whose costs are measured. No step with drafts is wider than the widest of them, nor
than the chunk: a job waits for such a step no longer than for a part of a prompt."""
_GPU_WIDTHS = (*range(1, 13), 16, 24, 1 + MAX_DRAFTS)
"""The widths on a GPU: other kernels compute wider steps, which may take less time than narrower ones."""

MAX_PADDED = 3
"""The most rows that fill a decode step up."""
_MIN_SAVED = 0.03
"""A decode step is filled up where that saves this share of its time."""

_FAR_TOO_SLOW = 2.0
"""A chunk that took this many targets is not tried again. A faster one that was too slow is, because another process's
moment must not shape all our steps."""
_N_TIMES = 3
"""The most times that each decode step is taken. The shortest time counts: whatever else the machine does only adds to
it, and a GPU's first step of a width runs without a graph, the second captures one. On a GPU each prefill step is taken
as often, because the first of a size also loads its kernels."""
_ALIKE_SHARE = 0.05
"""The share by which two times may differ; two such times are enough on a CPU."""

_SWITCHED_WIDTHS = (2, 8)
"""Widths that a step of one token is changed for, to find what a change costs."""
_N_SETTLING = 4
"""The number of steps of one token behind a wider one: on a GPU the first is enqueued kernel by kernel, the second
captures a graph, the third replays it."""

N_DEAD = 1024
"""The number of cells that are filled to measure what finished jobs' cells cost a step, and how long a copy takes."""
_BESIDE_DEAD = (1, 16)
"""The numbers of tokens of the steps that are measured beside them."""
MAX_DEAD_COST = 0.02
"""Finished jobs' cells in a GPU's memory may cost a step this share of its time: attention reads along all cells that
are used. An H100 reads those of a 7B model at 0.17 µs each in a step of 3.2 ms, and 16 rows at 0.2 to 0.5 µs in one of
7.4 ms."""

_ROW_COSTS_S = 1.0
"""The seconds after which no wider step is tried: if steps take that long, no job is to wait for more of them."""

_GREEDY = SamplingParams(seed=0, temperature=0.0)


class Retention(NamedTuple):
    """The treatment of finished jobs' cells in a GPU's memory; on a CPU they are copied out soon."""

    max_dead_cells: int = 0
    """The most cells that may stay while others run."""
    is_copying_worthwhile: bool = True
    """True if a copy in main memory is loaded sooner than its tokens are computed again."""


ON_CPU = Retention()


@dataclass(frozen=True, slots=True)
class Shapes:
    """The warm-up's choices."""

    chunk: int
    """The tokens of a prefill step at first while other jobs generate."""
    chunk_s: float
    """The seconds that such a step took."""
    row_costs: RowCosts
    """Ascending; empty where no drafts are to be tried."""
    ubatch_size: int
    """The most tokens that are computed at once."""
    switch_s: float = 0.0
    """The extra seconds of a step that has another width than those before and behind it."""
    padded_widths: PaddedWidths = ()
    """The widths of decode steps that are filled up."""
    retention: Retention = ON_CPU


def warm_up(
    runner: LlamaRunner,
    *,
    target_s: float,
    is_deterministic: bool,
    wants_drafts: bool,
    chunk: int = 0,
    row_costs: RowCosts = (),
    switch_s: float = 0.0,
    padded_widths: PaddedWidths = (),
) -> Shapes:
    """Choose the shapes; a `chunk` other than 0 is kept, and so are `row_costs` with `switch_s` and `padded_widths`
    where there are some. Wrong drafts need a memory from which they can be taken."""
    _time_step(runner, "prefill", MIN_CHUNK)
    is_on_gpu, context = runner.model.device.is_gpu, runner.context
    fixed = chunk or (min(DETERMINISTIC_CHUNK, context.n_ubatch) if is_deterministic else 0)
    timed = partial(_time_step, runner, "prefill", n_times=_N_TIMES if is_on_gpu else 1)
    prefill_s: Callable[[int], float] = cache(timed) if is_on_gpu else timed
    n_most = min(context.n_ubatch, context.n_ctx)
    ubatch_size = context.n_ubatch
    if fixed:
        chosen, chunk_s = fixed, prefill_s(fixed)
    else:
        chosen, chunk_s = chunk_within(target_s, n_most if is_on_gpu else min(_MAX_CHUNK, n_most), prefill_s)
    if is_on_gpu and not fixed:
        ubatch_size = widest_within(WIDENING * target_s, n_most, prefill_s)
    may_draft = wants_drafts and runner.kv.max_undone > 0 and not is_deterministic
    if not row_costs and (may_draft or (is_on_gpu and not is_deterministic)):
        measured = row_costs_of(runner, chosen)
        padded_widths = padded_widths_of(measured) if is_on_gpu and runner.kv.can_cut else ()
        row_costs = padded_costs(measured, padded_widths)
        switch_s = switch_s_of(runner, measured) if runner.kv.max_undone else 0.0
    has_retention = is_on_gpu and runner.kv.can_cut
    if has_retention and row_costs and not is_deterministic:
        # Changed there and back in `switch_s`.
        context.row_groups = RowGroups(padded=dict(padded_widths), held=HeldWidth(row_costs, switch_s / 2))
    retention = retention_of(runner, min(chosen, DEFAULT_UBATCH)) if has_retention else ON_CPU
    runner.kv.clear()
    if not may_draft:
        row_costs, switch_s = (), 0.0
    return Shapes(chosen, chunk_s, row_costs, ubatch_size, switch_s, padded_widths, retention)


def chunk_within(target_s: float, n_most: int, step_s: Callable[[int], float]) -> tuple[int, float]:
    """The largest power of two in 16..n_most whose step takes `target_s` seconds at most, and its time; 16 if none
    does. `step_s`: run a step of that many tokens, in seconds.

    A token of a wider step costs no more than one of a narrower, so sizes that need not even half of the target by the
    last one's time are passed over. What tokens cost between two sizes that were tried, more of them cost as well: a
    size that would need more than the target by that is not tried. Where these do not hold something else took time,
    and the step is tried again.
    """
    chunk, chunk_s = MIN_CHUNK, step_s(MIN_CHUNK)
    token_s = 0.0
    while 2 * chunk <= n_most:
        size = 2 * chunk
        while 2 * size <= n_most and chunk_s * size / chunk < target_s / 2:
            size *= 2
        if chunk_s + token_s * (size - chunk) > target_s:
            break
        elapsed_s = step_s(size)
        is_odd = elapsed_s > target_s or elapsed_s / size > chunk_s / chunk
        if is_odd and elapsed_s < _FAR_TOO_SLOW * target_s:
            elapsed_s = min(elapsed_s, step_s(size))
        if elapsed_s > target_s:
            n_most = size // 2
        else:
            token_s = (elapsed_s - chunk_s) / (size - chunk)
            chunk, chunk_s = size, elapsed_s
    return chunk, chunk_s


def widest_within(max_s: float, n_most: int, step_s: Callable[[int], float]) -> int:
    """The size of the widest prefill step that takes `max_s` seconds at most: DEFAULT_UBATCH, or twice as many tokens
    again and again where each takes no longer than before; `n_most` at most.
    """
    size = min(DEFAULT_UBATCH, n_most)
    while 2 * size <= n_most:
        taken_s = step_s(size)
        if 2 * taken_s > max_s or step_s(2 * size) > 2 * (1 + _ALIKE_SHARE) * taken_s:
            break
        size *= 2
    return size


def padded_widths_of(row_costs: RowCosts) -> PaddedWidths:
    """The widths for which a step of up to MAX_PADDED more tokens takes less time, each with the best of these."""
    costs = dict(row_costs)
    found = []
    for width, cost_s in row_costs:
        wider = [(costs[n], n) for n in range(width + 1, width + MAX_PADDED + 1) if n in costs]
        min_s, best = min(wider, default=(cost_s, width))
        if min_s <= (1 - _MIN_SAVED) * cost_s:
            found.append((width, best))
    return tuple(found)


def padded_costs(row_costs: RowCosts, padded_widths: PaddedWidths) -> RowCosts:
    """The costs of steps that are filled up."""
    costs, padded = dict(row_costs), dict(padded_widths)
    return tuple((width, costs[padded.get(width, width)]) for width, _ in row_costs)


def row_costs_of(runner: LlamaRunner, n_most: int = WIDTHS[-1]) -> RowCosts:
    """The time of a step of each width, as far as `n_most` and _ROW_COSTS_S reach."""
    n_most = min(n_most, WIDTHS[-1])
    costs: list[tuple[int, float]] = []
    widths = _GPU_WIDTHS if runner.model.device.is_gpu else WIDTHS
    began_s = time.perf_counter()
    for width in (*(width for width in widths if width < n_most), n_most):
        if time.perf_counter() - began_s > _ROW_COSTS_S:
            break
        costs.append((width, _decode_s(runner, width)))
    return tuple(costs)


def _decode_s(runner: LlamaRunner, width: int) -> float:
    times: list[float] = []
    while len(times) < _N_TIMES:
        times.append(_time_step(runner, "decode", width))
        if len(times) > 1 and runner.model.device.kind == "cpu" and max(times) <= (1 + _ALIKE_SHARE) * min(times):
            break
    return min(times)


def switch_s_of(runner: LlamaRunner, row_costs: RowCosts) -> float:
    """The extra seconds that a wider step costs among steps of one token; 0 on a CPU."""
    if not runner.model.device.is_gpu:
        return 0.0
    costs = dict(row_costs)

    def surplus_s(width: int) -> float:
        widths = (width, *(1,) * _N_SETTLING)
        taken_s = min(sum(_time_step(runner, "decode", each) for each in widths) for _ in range(_N_TIMES))
        return taken_s - sum(costs[each] for each in widths)

    return max([0.0, *(surplus_s(width) for width in _SWITCHED_WIDTHS if width in costs)])


def retention_of(runner: LlamaRunner, chunk: int) -> Retention:
    """Compare a step in empty memory with one next to finished jobs' cells, and copying these with reading them."""
    kv, n_dead = runner.kv, min(N_DEAD, runner.context.n_ctx // 2) // chunk * chunk
    tokens = [TokenId(i % runner.model.n_vocab) for i in range(n_dead)]
    if not n_dead:
        return ON_CPU
    step_s = partial(_time_step, runner, "decode", n_times=1 + _N_TIMES)
    plain_s = list(map(step_s, _BESIDE_DEAD))
    began_s = time.perf_counter()
    for start in range(0, n_dead, chunk):
        runner.run(Step("prefill", (Slice(SlotId(1), start, tokens[start : start + chunk]),)))
    read_s = time.perf_counter() - began_s
    n_cheap = min(
        MAX_DEAD_COST * before_s * n_dead / max(1e-9, step_s(n) - before_s)
        for n, before_s in zip(_BESIDE_DEAD, plain_s, strict=True)
    )
    saved = kv.save(SlotId(1), 0)
    kv.trim(SlotId(1), 0)
    began_s = time.perf_counter()
    kv.load(SlotId(1), [saved], n_dead)
    load_s = time.perf_counter() - began_s
    n_most = min(max(CELL_STEP, int(n_cheap)), runner.context.n_ctx // 2)
    return Retention(n_most, is_copying_worthwhile=load_s < read_s)


def _time_step(runner: LlamaRunner, kind: StepKind, n_tokens: int, n_times: int = 1) -> float:
    """The shortest time in seconds of a step of the first slot, whatever other slots hold; all but the first token of a
    decode step are drafts. A token is drawn, because only that waits for a GPU to finish.
    """
    tokens = [TokenId(i % runner.model.n_vocab) for i in range(n_tokens)]
    step = Step(kind, (Slice(SlotId(0), 0, tokens, _GREEDY, n_drafts=n_tokens - 1 if kind == "decode" else 0),))
    times = []
    for _ in range(n_times):
        began_s = time.perf_counter()
        runner.run(step)
        times.append(time.perf_counter() - began_s)
        runner.kv.trim(SlotId(0), 0)
    return min(times)
