"""The test whether the same tokens give the same logits, bit for bit, in all the ways in which they are computed.

Owns the tokens, the variants of computing them, and the comparison. Knows nothing of jobs; takes the whole memory and
leaves it empty. Runs on the step thread, one step at a time, so that a job that arrives waits for no more than that.

First come decode steps of every width that jobs can make (row_widths.py), then a prompt and a few tokens after it,
computed alone and in every other variant that serving has. The rows of logits that a token would be drawn from are
compared. Where chunks are fixed the answers have to be the same: the test is repeated with other groupings of rows
until they are.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, takewhile

import numpy as np

from worker.engine.backend import Saved
from worker.engine.step import Aborted, Slice
from worker.llama.batch import RowGroups
from worker.llama.context import Context
from worker.llama.row_widths import DRAWN, Rows, RowWidths, Steps, in_words, same_bits
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SlotId, TokenId
from worker.wire.load import SelfTested, Tried

MAX_S = 5.0
"""The seconds of computing that the test may take if no setting asked for it."""

MAX_OTHERS = 7
"""Together with the sequence itself they are the default number of slots."""

_N_AFTER = 4
"""The number of tokens that are computed after the prompt."""
_N_DRAFT_ROWS = 9
"""The rows of a step with drafts: from eight rows on ggml has other kernels for K-quants."""
_PART, _MAX_PARTS = 24, 3
"""A prompt has one to three parts of this many tokens, as time and context allow."""
_MORE_LENGTHS = (65, 3)
"""The lengths of further prompts when the answers have to be the same: a chunk and a token more, and hardly any."""
_N_ROUNDS = 3
"""The tokens of each of the widths' sequences that are computed when the answers have to be the same."""
_N_PASSES = 10
"""The whole test computes a prompt's tokens about this many times."""
_N_BESIDE = 9
"""The tokens that each other sequence computes while the prompt is computed."""
_SMALL = (1, 2, 3, 4, 5, 7, 8, 16, 17)
"""The tokens in the chunks of a prompt that is cut small: ggml computes rows one by one, by four, and from eight on
otherwise again."""

ROW_GROUPINGS = (
    RowGroups(),
    RowGroups(most=4),
    RowGroups(multiple=2),
    RowGroups(multiple=2, most=4),
    RowGroups(multiple=4),
    RowGroups(multiple=4, most=4),
    RowGroups(most=1),
)
"""The groupings that are tried, the cheapest for a job alone first. K-quants have another kernel from eight rows on,
weights of floats one for two rows and more. With the last a row shares no product with another, and so has the same
bits everywhere."""

_SUBJECT = SlotId(0)


@dataclass(frozen=True, slots=True)
class Serving:
    """The ways in which this engine computes; a variant that it never computes is not tested."""

    chunk: int
    is_fixed: bool
    """Prompts are cut at multiples of the chunk only, whatever else there is to do, and no step has parts of two."""
    n_parallel: int
    """Jobs that may generate at once."""
    has_drafts: bool
    context_length: int


@dataclass(slots=True)
class _Findings:
    """The variants that were tried so far, and those that differed."""

    groups: RowGroups
    n_prompts: int = 0
    widths: list[int] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    differing_widths: list[int] = field(default_factory=list)
    differing_variants: list[str] = field(default_factory=list)

    def tried_width(self, width: int, *, is_same: bool) -> None:
        self.widths.append(width)
        if not is_same:
            self.differing_widths.append(width)

    def tried(self, variant: str, *, is_same: bool) -> None:
        """Note a variant, which comes once for each prompt."""
        if variant not in self.variants:
            self.variants.append(variant)
        if not is_same and variant not in self.differing_variants:
            self.differing_variants.append(variant)

    @property
    def differences(self) -> tuple[str, ...]:
        of_widths = [f"in decode steps of {in_words(self.differing_widths)} rows"] if self.differing_widths else []
        return (*of_widths, *self.differing_variants)

    def result(self) -> SelfTested:
        return SelfTested(
            is_same=not self.differences,
            differences=self.differences,
            tried=Tried(
                prompts=self.n_prompts,
                widths=tuple(self.widths),
                ways=tuple(self.variants),
                row_multiple=self.groups.multiple,
                most_rows=self.groups.most,
            ),
        )


class _TimeIsUp(Exception):
    pass


def self_test(
    runner: LlamaRunner, serving: Serving, *, max_s: float = MAX_S, clock: Callable[[], float] = time.monotonic
) -> Generator[SelfTested | None, None, None]:
    """Test as LoadedModel.self_test says. Ends without a result if that would take more than `max_s`, unless something
    differed by then, and if the context is too short for the sequence.

    Where chunks are fixed the runner's row groups are set to the first that leave nothing that differs, or to the last
    of all. Bits choose them and not times, so that they are the same again after a restart.
    """
    stepper = _Stepper(runner, max_s, clock)
    *trials, last = _choices(runner, serving)
    for groups in trials:
        runner.context.row_groups = groups
        with closing(_tested(runner, serving, stepper, is_last=False)) as results:
            for result in results:
                if result is not None and not result.is_same:
                    break
                yield result
            else:
                return
    runner.context.row_groups = last
    yield from _tested(runner, serving, stepper, is_last=True)


def _choices(runner: LlamaRunner, serving: Serving) -> list[RowGroups]:
    """The row groups to try; where chunks are not fixed, only llama.cpp's own."""
    if not serving.is_fixed:
        return [RowGroups()]
    can_pad = runner.context.can_pad
    return [one for one in ROW_GROUPINGS if one.most < serving.n_parallel and (one.multiple == 1 or can_pad)]


def _tested(
    runner: LlamaRunner, serving: Serving, stepper: "_Stepper", *, is_last: bool
) -> Generator[SelfTested | None, None, None]:
    """The test with the row groups of the moment. Only the last looks for all that differs."""
    findings = _Findings(runner.context.row_groups)
    try:
        while True:
            runner.kv.clear()
            try:
                compared = _compare(runner, serving, stepper, findings)
                for _ in compared:
                    if findings.differences and not is_last:
                        break
                    yield None
                break
            except Aborted:  # meant for a step that was over by then: a client cancelled the last job
                runner.forget_abort()
                findings = _Findings(runner.context.row_groups)
        if findings.n_prompts or findings.differences:
            yield findings.result()
    except _TimeIsUp:
        if findings.differences:
            yield findings.result()
    finally:
        runner.kv.clear()


def _compare(
    runner: LlamaRunner, serving: Serving, stepper: "_Stepper", findings: _Findings
) -> Generator[None, None, None]:
    n_prompt = yield from stepper.affordable(serving)
    if not n_prompt:
        return
    yield from _compare_widths(runner, serving, stepper, findings)
    more = [n for n in _MORE_LENGTHS if n <= serving.context_length - _N_AFTER] if serving.is_fixed else []
    for number, length in enumerate((n_prompt, *more)):
        variants = _Variants(runner, serving, length, stepper.step, seed=number)
        runner.kv.clear()
        alone = yield from variants.alone()
        for name, variant in variants.others():
            runner.kv.clear()
            rows = yield from variant()
            findings.tried(name, is_same=same_bits(rows, alone[: len(rows)]))
        findings.n_prompts += 1


def _compare_widths(
    runner: LlamaRunner, serving: Serving, stepper: "_Stepper", findings: _Findings
) -> Generator[None, None, None]:
    n_rounds = _N_ROUNDS if serving.is_fixed else 1
    rows = RowWidths(runner, stepper.all_rows, n_slots=serving.n_parallel, chunk=serving.chunk, n_rounds=n_rounds)
    yield from rows.compute_alone()
    for width in rows.widths:
        findings.tried_width(width, is_same=(yield from rows.is_same_at(width)))
    findings.n_prompts += rows.n_prompts


class _Stepper:
    """Decodes, copies the first slice's rows, and watches the time."""

    def __init__(self, runner: LlamaRunner, max_s: float, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._context = runner.context
        self._clock = clock
        self._max_s = max_s
        self._spent_s = 0.0

    def affordable(self, serving: Serving) -> Generator[None, None, int]:
        """Compute one part of a prompt to see how long a prompt may be, in tokens; 0: not even that."""
        max_parts = min(_MAX_PARTS, (serving.context_length - _n_after_alone(serving)) // _PART)
        if max_parts < 1:
            return 0
        n_vocab = self._runner.model.n_vocab
        tokens = [TokenId(i % n_vocab) for i in range(_PART)]
        before_s = self._spent_s
        yield from self.step([Slice(_SUBJECT, 0, tokens, DRAWN)])
        part_s, left_s = self._spent_s - before_s, self._max_s - self._spent_s
        fitting = [n_parts for n_parts in range(1, max_parts + 1) if n_parts * _N_PASSES * part_s <= left_s]
        return max(fitting, default=1) * _PART

    def step(self, slices: Seq[Slice]) -> Steps:
        """The first slice's rows, if it draws. Raises: _TimeIsUp."""
        return self._decode(slices, 0 if slices[0].sampling is None else 1 + slices[0].n_drafts)

    def all_rows(self, slices: Seq[Slice]) -> Steps:
        """Every slice's. Raises: _TimeIsUp."""
        return self._decode(slices, sum(1 + one.n_drafts for one in slices if one.sampling is not None))

    def _decode(self, slices: Seq[Slice], n_rows: int) -> Steps:
        if self._spent_s > self._max_s:
            raise _TimeIsUp
        began_s = self._clock()
        rows: Rows = []
        for batch in self._runner.batches(slices):
            indexes = self._context.decode(batch)
            rows += [self._context.logits(index).copy() for index in indexes[: n_rows - len(rows)]]
        self._spent_s += self._clock() - began_s
        yield
        return rows


def _n_after_alone(serving: Serving) -> int:
    """Tokens after the prompt that are computed alone: as many as a step with drafts has."""
    return _N_DRAFT_ROWS if serving.has_drafts else _N_AFTER


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """The other sequences, which are all alike."""

    slots: Seq[SlotId]
    n_each: int
    """The tokens that each computes in a prefill step."""
    n_loaded: int
    """The cells that each has before, if cells can be loaded: one row over very many is computed otherwise."""

    @classmethod
    def beside(cls, context: Context, serving: Serving, *, n_steps: int, n_cells: int) -> "_Neighbours":
        """Return as many as there are jobs and room for, next to a sequence of `n_cells` and its `n_steps` prefill
        steps.
        """
        n_each = 1 if serving.is_fixed else max(1, _N_BESIDE // n_steps)
        n_own = n_steps * n_each + _N_AFTER
        room = context.n_ctx - n_cells
        n_others = min(MAX_OTHERS, serving.n_parallel - 1, room // n_own)
        n_loaded = min(n_cells, room // n_others - n_own, serving.context_length - n_own) if n_others else 0
        return cls([SlotId(1 + i) for i in range(n_others)], n_each, n_loaded)


class _Variants:
    """The sequence, in slot 0, and the variants of computing it, each in memory that is empty."""

    def __init__(
        self, runner: LlamaRunner, serving: Serving, n_prompt: int, step: Callable[[Seq[Slice]], Steps], *, seed: int
    ) -> None:
        self._runner = runner
        self._chunk = serving.chunk
        self._serving = serving
        self._step = step
        self._n_prompt = n_prompt
        self._end = n_prompt + _N_AFTER
        self._after = range(n_prompt + 1, self._end + 1)
        self._beside = self._edges(0, serving.chunk if serving.is_fixed else n_prompt // _MAX_PARTS)
        self._neighbours = _Neighbours.beside(runner.context, serving, n_steps=len(self._beside), n_cells=self._end)
        size = (2, 2 * (n_prompt + _N_DRAFT_ROWS))
        self._subject, self._other = np.random.default_rng(seed).integers(runner.model.n_vocab, size=size).tolist()
        self._n_reused = (n_prompt - 1) // serving.chunk * serving.chunk if serving.is_fixed else n_prompt - 1
        self._saved: Saved | None = None

    def alone(self) -> Steps:
        """Compute in chunks, as if others were generating. The cells are kept for other variants."""
        end = self._n_prompt + _n_after_alone(self._serving)
        rows = yield from self._compute(0, [*self._edges(0, self._chunk), *range(self._n_prompt + 1, end + 1)])
        if self._runner.kv.can_cut:
            self._saved = self._runner.kv.save(_SUBJECT, 0)
        return rows

    def others(self) -> Iterator[tuple[str, Callable[[], Steps]]]:
        """Yield the name of a difference, and the variant that shows it."""
        if not self._serving.is_fixed:
            if self._chunk < self._n_prompt:
                yield "in one step", self._in_one_step
            yield "in small chunks", self._in_small_chunks
        n_others = len(self._neighbours.slots)
        reused = self._saved if self._n_reused else None
        if reused is not None:
            yield "from the prefix cache", partial(self._from_the_cache, reused)
            if self._serving.has_drafts:
                yield "with draft tokens", partial(self._with_drafts, reused)
            if self._runner.context.n_slots > 1:
                yield "sharing another's prefix", partial(self._sharing, reused)
        if n_others:
            yield "where others have left", self._where_others_left
            yield f"beside {n_others} others", self._beside_others
            if reused is not None:
                yield f"over the cells of {n_others} others", partial(self._over_cells, reused)

    # ── variants ─────────────────────────────────────────────────────────────────────────────────

    def _in_one_step(self) -> Steps:
        return self._compute(0, [self._n_prompt, *self._after])

    def _in_small_chunks(self) -> Steps:
        edges = [*takewhile(lambda edge: edge < self._n_prompt, accumulate(_SMALL)), self._n_prompt]
        return self._compute(0, [*edges, *self._after])

    def _with_drafts(self, saved: Saved) -> Steps:
        """The tokens after the prompt are all drafts but the first, and all right."""
        self._runner.kv.load(_SUBJECT, [saved], self._n_reused)
        rows = yield from self._compute(self._n_reused, self._edges(self._n_reused, self._chunk))
        tokens = self._subject[self._n_prompt : self._n_prompt + _N_DRAFT_ROWS]
        drafting = Slice(_SUBJECT, self._n_prompt, tokens, DRAWN, n_drafts=_N_DRAFT_ROWS - 1)
        return rows + (yield from self._step([drafting]))

    def _from_the_cache(self, saved: Saved) -> Steps:
        """Load the cells in two parts, because a cached prefix is rarely one."""
        self._runner.kv.load(_SUBJECT, saved.split(self._n_prompt // 3), self._n_reused)
        return self._compute_rest()

    def _sharing(self, saved: Saved) -> Steps:
        source = SlotId(1)
        self._runner.kv.load(source, [saved], self._end)
        self._runner.kv.share(source, _SUBJECT, self._n_reused)
        return self._compute_rest()

    def _where_others_left(self) -> Steps:
        """Their cells lay before its own, and its later ones may not go there."""
        theirs = self._other[: len(self._beside) * self._neighbours.n_each + _N_AFTER]
        for slot in self._neighbours.slots:
            for start in range(0, len(theirs), self._chunk):
                yield from self._step([Slice(slot, start, theirs[start : start + self._chunk])])
        first, *edges = self._beside
        rows = yield from self._compute(0, [first])
        for slot in self._neighbours.slots:
            self._runner.kv.trim(slot, 0)
        return rows + (yield from self._compute(first, [*edges, *self._after]))

    def _beside_others(self) -> Steps:
        at = self._load_others(self._saved) if self._saved is not None else 0
        return self._compute(0, [*self._beside, *self._after], self._neighbours.slots, at)

    def _over_cells(self, saved: Saved) -> Steps:
        """Theirs lie between its own: threads that share the cells of a lone row must then share the sequence."""
        self._runner.kv.load(_SUBJECT, [saved], self._n_reused)
        self._load_others(saved)
        return self._compute_rest()

    # ── parts of variants ────────────────────────────────────────────────────────────────────────

    def _load_others(self, saved: Saved) -> int:
        """Load saved cells into the neighbours' slots. Return the number of cells that each neighbour has."""
        n_loaded = self._neighbours.n_loaded
        for slot in self._neighbours.slots if n_loaded else ():
            self._runner.kv.load(slot, [saved], n_loaded)
        return n_loaded

    def _compute_rest(self) -> Steps:
        return self._compute(self._n_reused, [*self._edges(self._n_reused, self._chunk), *self._after])

    def _compute(self, start: int, ends: Iterable[int], others: Seq[SlotId] = (), at: int = 0) -> Steps:
        """The sequence from `start` on, up to each of the ends in a step; in each the others go on from `at`."""
        rows: Rows = []
        for end in ends:
            wanted = DRAWN if end >= self._n_prompt else None
            other_end = at + (self._neighbours.n_each if end <= self._n_prompt else 1)
            own = Slice(_SUBJECT, start, self._subject[start:end], wanted)
            beside = [Slice(slot, at, self._other[at:other_end], DRAWN) for slot in others]
            if beside and self._serving.is_fixed and end <= self._n_prompt:
                rows += yield from self._step([own])
                yield from self._step(beside)
            else:
                rows += yield from self._step([own, *beside])
            start, at = end, other_end
        return rows

    def _edges(self, start: int, size: int) -> list[int]:
        """The ends of the prompt's chunks from `start` on, at multiples of the size."""
        return [*range((start // size + 1) * size, self._n_prompt, size), self._n_prompt]
