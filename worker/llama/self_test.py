"""Whether the same tokens give the same logits, bit for bit, however they are computed: measured, not assumed.

Owns the tokens, the ways to compute them, and the comparison. Knows nothing of jobs; takes the whole memory and leaves
it empty. Runs on the step thread, one step at a time, so that a job that arrives waits for no more than that.

One sequence, a prompt and a few tokens after it, is computed alone first, then in every other way that serving has.
Compared are the rows of logits a token would be drawn from: of the prompt's last token, and of each one after it.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import numpy as np

from worker.engine.backend import Aborted, Saved, Slice
from worker.engine.contract import Sampling, SelfTested, SlotId, TokenId
from worker.llama.context import Context, Logits
from worker.llama.runner import LlamaRunner, batches

MOST_S = 5.0
"""Of computing, where nobody asked for the test."""

MOST_OTHERS = 7
"""With the sequence itself the default number of slots."""

_N_AFTER = 4
"""Tokens after the prompt."""
_PART, _MOST_PARTS = 24, 3
"""A prompt has one to three parts of so many tokens, as time and context allow."""
_N_PASSES = 8
"""The whole test computes about so many times a prompt's tokens."""
_N_BESIDE = 9
"""Tokens that each other sequence computes beside the prompt."""
_N_SINGLE = 8
"""Tokens of a prompt that are computed one a step, where it is cut small."""

_DRAWN = Sampling(seed=0, temperature=0.0)
"""Marks a slice whose logits are wanted; nothing is drawn."""

_SUBJECT = SlotId(0)

Rows = list[Logits]
"""Copies."""

Steps = Generator[None, None, Rows]
"""A yield after each decode; returns the sequence's rows."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How this engine computes; a way that it never takes is not tested."""

    chunk: int
    is_fixed: bool
    """Prompts are cut at multiples of the chunk only, whatever else there is to do."""
    has_guesses: bool
    context_length: int


class _TimeIsUp(Exception):
    pass


def self_test(
    runner: LlamaRunner, habits: Habits, *, most_s: float = MOST_S, clock: Callable[[], float] = time.monotonic
) -> Generator[SelfTested | None, None, None]:
    """As LoadedModel.self_test. Ends without a result where that would take more than `most_s`, unless something
    differed by then, and where the context is too short for the sequence.
    """
    stepper = _Stepper(runner, most_s, clock)
    found: list[str] = []
    try:
        while True:
            runner.context.clear()
            try:
                return (yield from _compare(runner, habits, stepper, found))
            except Aborted:  # meant for a step that was over by then: somebody cancelled the last job
                runner.forget_abort()
                found.clear()
    except _TimeIsUp:
        if found:
            yield SelfTested(is_same=False, differences=tuple(found))
    finally:
        runner.context.clear()


def _compare(
    runner: LlamaRunner, habits: Habits, stepper: "_Stepper", found: list[str]
) -> Generator[SelfTested | None, None, None]:
    n_prompt = yield from stepper.affordable(habits.context_length)
    if not n_prompt:
        return
    runner.context.clear()
    ways = _Ways(runner, habits, n_prompt, stepper.step)
    alone = yield from ways.alone()
    for name, way in ways.others():
        runner.context.clear()
        rows = yield from way()
        if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(rows, alone, strict=True)):
            found.append(name)
    yield SelfTested(is_same=not found, differences=tuple(found))


class _Stepper:
    """Decodes, copies the first slice's rows, and watches the time."""

    def __init__(self, runner: LlamaRunner, most_s: float, clock: Callable[[], float]) -> None:
        self._context = runner.context
        self._n_vocab = runner.model.n_vocab
        self._clock = clock
        self._most_s = most_s
        self._spent_s = 0.0

    def affordable(self, context_length: int) -> Generator[None, None, int]:
        """Compute one part of a prompt to see how long a prompt may be, in tokens; 0: not even that."""
        most_parts = min(_MOST_PARTS, (context_length - _N_AFTER) // _PART)
        if not most_parts:
            return 0
        tokens = [TokenId(i % self._n_vocab) for i in range(_PART)]
        before_s = self._spent_s
        yield from self.step([Slice(_SUBJECT, 0, tokens, _DRAWN)])
        part_s, left_s = self._spent_s - before_s, self._most_s - self._spent_s
        fitting = [n_parts for n_parts in range(1, most_parts + 1) if n_parts * _N_PASSES * part_s <= left_s]
        return max(fitting, default=1) * _PART

    def step(self, slices: Seq[Slice]) -> Steps:
        """The first slice's rows, if it draws. Raises: _TimeIsUp."""
        if self._spent_s > self._most_s:
            raise _TimeIsUp
        began_s = self._clock()
        n_rows = 0 if slices[0].sampling is None else 1 + slices[0].n_drafts
        rows: Rows = []
        for batch in batches(slices, self._context.n_batch):
            indexes = self._context.decode(batch)
            rows += [self._context.logits(index).copy() for index in indexes[: n_rows - len(rows)]]
        self._spent_s += self._clock() - began_s
        yield
        return rows


@dataclass(frozen=True, slots=True)
class _Company:
    """The other sequences; all alike."""

    slots: Seq[SlotId]
    n_each: int
    """Tokens that each computes in a prefill step."""
    n_loaded: int
    """Cells that each has before, where cells can be loaded: one row over very many is computed in its own way."""

    @classmethod
    def beside(cls, context: Context, *, n_steps: int, n_cells: int, context_length: int) -> "_Company":
        """As many as there are slots and room for, beside a sequence of `n_cells` and its `n_steps` prefill steps."""
        n_each = max(1, _N_BESIDE // n_steps)
        n_own = n_steps * n_each + _N_AFTER
        room = context.n_ctx - n_cells
        n_others = min(MOST_OTHERS, context.n_slots - 1, room // n_own)
        n_loaded = min(n_cells, room // n_others - n_own, context_length - n_own) if n_others else 0
        return cls([SlotId(1 + i) for i in range(n_others)], n_each, n_loaded)


class _Ways:
    """The sequence, in slot 0, and ways to compute it, each in memory that is empty."""

    def __init__(self, runner: LlamaRunner, habits: Habits, n_prompt: int, step: Callable[[Seq[Slice]], Steps]) -> None:
        self._runner = runner
        self._chunk = habits.chunk
        self._habits = habits
        self._step = step
        self._n_prompt = n_prompt
        self._end = n_prompt + _N_AFTER
        self._after = range(n_prompt + 1, self._end + 1)
        self._beside = self._edges(0, habits.chunk if habits.is_fixed else n_prompt // _MOST_PARTS)
        self._company = _Company.beside(
            runner.context, n_steps=len(self._beside), n_cells=self._end, context_length=habits.context_length
        )
        size = (2, 2 * self._end)
        self._subject, self._other = np.random.default_rng(0).integers(runner.model.n_vocab, size=size).tolist()
        self._n_reused = (n_prompt - 1) // habits.chunk * habits.chunk if habits.is_fixed else n_prompt - 1
        self._saved: Saved | None = None

    def alone(self) -> Steps:
        """In chunks, as if others were generating. The cells are kept for other ways."""
        rows = yield from self._compute(0, [*self._edges(0, self._chunk), *self._after])
        if self._runner.can_share:
            self._saved = self._runner.save(_SUBJECT, 0)
        return rows

    def others(self) -> Iterator[tuple[str, Callable[[], Steps]]]:
        """What a difference is called, and the way to compute it."""
        if not self._habits.is_fixed:
            if self._chunk < self._n_prompt:
                yield "in one step", self._in_one_step
            yield "in chunks of 7 and 1", self._in_small_chunks
        n_others = len(self._company.slots)
        reused = self._saved if self._n_reused else None
        if reused is not None:
            yield "from the prefix cache", partial(self._from_the_cache, reused)
            if self._habits.has_guesses:
                yield "with guessed tokens", partial(self._with_guesses, reused)
            if n_others:
                yield "sharing another's prefix", partial(self._sharing, reused)
        if n_others:
            yield f"beside {n_others} others", self._beside_others
            if reused is not None:
                yield f"over the cells of {n_others} others", partial(self._over_cells, reused)

    # ── ways ─────────────────────────────────────────────────────────────────────────────────────

    def _in_one_step(self) -> Steps:
        return self._compute(0, [self._n_prompt, *self._after])

    def _in_small_chunks(self) -> Steps:
        n_sevens = self._n_prompt - _N_SINGLE
        return self._compute(0, [*range(7, n_sevens, 7), *range(n_sevens, self._n_prompt + 1), *self._after])

    def _with_guesses(self, saved: Saved) -> Steps:
        """The tokens after the prompt are all guesses but the first, and all right."""
        self._runner.load(_SUBJECT, [saved], self._n_reused)
        rows = yield from self._compute(self._n_reused, self._edges(self._n_reused, self._chunk))
        tokens = self._subject[self._n_prompt : self._end]
        guessing = Slice(_SUBJECT, self._n_prompt, tokens, _DRAWN, n_drafts=_N_AFTER - 1)
        return rows + (yield from self._step([guessing]))

    def _from_the_cache(self, saved: Saved) -> Steps:
        """In two parts, because a cached prefix is rarely one."""
        self._runner.load(_SUBJECT, saved.split(self._n_prompt // 3), self._n_reused)
        return self._compute_rest()

    def _sharing(self, saved: Saved) -> Steps:
        source = self._company.slots[0]
        self._runner.load(source, [saved], self._end)
        self._runner.share(source, _SUBJECT, self._n_reused)
        return self._compute_rest()

    def _beside_others(self) -> Steps:
        at = self._load_others(self._saved) if self._saved is not None else 0
        return self._compute(0, [*self._beside, *self._after], self._company.slots, at)

    def _over_cells(self, saved: Saved) -> Steps:
        """Theirs lie between its own: threads that share the cells of a lone row must then share the sequence."""
        self._runner.load(_SUBJECT, [saved], self._n_reused)
        self._load_others(saved)
        return self._compute_rest()

    # ── pieces of ways ───────────────────────────────────────────────────────────────────────────

    def _load_others(self, saved: Saved) -> int:
        """How many cells each of them has now."""
        n_loaded = self._company.n_loaded
        for slot in self._company.slots if n_loaded else ():
            self._runner.load(slot, [saved], n_loaded)
        return n_loaded

    def _compute_rest(self) -> Steps:
        return self._compute(self._n_reused, [*self._edges(self._n_reused, self._chunk), *self._after])

    def _compute(self, start: int, ends: Iterable[int], others: Seq[SlotId] = (), at: int = 0) -> Steps:
        """The sequence from `start` on, up to each of the ends in a step; in each the others go on from `at`."""
        rows: Rows = []
        for end in ends:
            wanted = _DRAWN if end >= self._n_prompt else None
            other_end = at + (self._company.n_each if end <= self._n_prompt else 1)
            slices = [Slice(_SUBJECT, start, self._subject[start:end], wanted)]
            slices += [Slice(slot, at, self._other[at:other_end], wanted) for slot in others]
            rows += yield from self._step(slices)
            start, at = end, other_end
        return rows

    def _edges(self, start: int, size: int) -> list[int]:
        """The ends of the prompt's chunks from `start` on, at multiples of the size."""
        return [*range((start // size + 1) * size, self._n_prompt, size), self._n_prompt]
