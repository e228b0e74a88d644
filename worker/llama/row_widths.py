"""The test whether a decode step's rows have the bits that they have alone, at every width that jobs can make.

Owns some short sequences and the steps that they share. Every row is compared, so that all places in a step are looked
at. Knows neither time nor verdicts: self_test.py runs it, on the step thread.
"""

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Seq
from itertools import groupby

import numpy as np

from worker.engine.backend import Saved
from worker.engine.step import Slice
from worker.llama.context import Logits
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import Sampling, SlotId, TokenId

DRAWN = Sampling(seed=0, temperature=0.0)
"""Marks a slice whose logits are wanted; nothing is drawn."""

Rows = list[Logits]
"""Copies of rows of logits."""
Steps = Generator[None, None, Rows]
"""Yields after each decode and returns rows."""
Step = Callable[[Seq[Slice]], Steps]
"""Runs a step and returns all its rows, slice by slice."""

_ALL_TO = 16
"""Every width up to this is tried: ggml computes rows in groups of 2, 4, 8 and 16, and what is left of them apart."""
_SOME = (24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 192)
"""The wider ones that are tried: those about which a kernel or its tiles may change."""

_PROMPT_LENGTHS = (9, 6, 12, 10)
"""They differ, so that the step that the prompts share finds them at different positions."""


def widths(n_slots: int) -> tuple[int, ...]:
    """The widths to try for `n_slots` slots."""
    return tuple(sorted({*range(1, min(n_slots, _ALL_TO) + 1), *(n for n in _SOME if n < n_slots), n_slots}))


def in_words(found: Iterable[int]) -> str:
    """Ascending widths in words: `2 to 5 and 8`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(found), lambda pair: pair[1] - pair[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def same_bits(rows: Rows, others: Rows) -> bool:
    """Return whether the rows are equal bit for bit; two values that are not numbers count as equal."""
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(rows, others, strict=True))


class RowWidths:
    """The sequences; each is computed alone first, under the row groups that the context has by then."""

    def __init__(self, runner: LlamaRunner, step: Step, *, n_slots: int, chunk: int, n_rounds: int) -> None:
        """`n_rounds`: how many tokens of each sequence are computed next to others."""
        self._runner = runner
        self._step = step
        self._chunk = chunk
        self._n_rounds = n_rounds
        self._lengths = _PROMPT_LENGTHS[:n_slots]
        longest = max(self._lengths) + n_rounds
        chance = np.random.default_rng(1)
        self._tokens: list[list[TokenId]] = chance.integers(
            runner.model.n_vocab, size=(len(self._lengths), longest)
        ).tolist()
        self.widths = widths(min(n_slots, runner.context.n_ctx // longest))
        self._alone: list[Rows] = []
        self._saved: list[Saved | None] = []

    @property
    def n_prompts(self) -> int:
        return len(self._lengths)

    def compute_alone(self) -> Generator[None, None, None]:
        self._alone, self._saved = [], []
        slot = SlotId(0)
        for number in range(self.n_prompts):
            self._runner.kv.clear()
            yield from self._read(slot, number)
            rows: Rows = []
            for turn in range(self._n_rounds):
                rows += yield from self._step([self._next(slot, number, turn)])
            self._alone.append(rows)
            self._saved.append(self._runner.kv.save(slot, 0) if self._runner.kv.can_cut else None)

    def is_same_at(self, width: int) -> Generator[None, None, bool]:
        """Return whether every row of steps of `width` rows is the one that was computed alone.

        Prompts take turns at the places of a step, others at each width and in each round.
        """
        self._runner.kv.clear()
        numbers = [(place + width) % self.n_prompts for place in range(width)]
        for place, number in enumerate(numbers):
            yield from self._fill(SlotId(place), number)
        are_same = True
        for turn in range(self._n_rounds):
            order = [*range(turn % width, width), *range(turn % width)]
            rows = yield from self._step([self._next(SlotId(place), numbers[place], turn) for place in order])
            expected = [self._alone[numbers[place]][turn] for place in order]
            are_same &= same_bits(rows, expected)
        return are_same

    def _fill(self, slot: SlotId, number: int) -> Generator[None, None, None]:
        """Give the slot the prompt's cells, as they were computed alone."""
        saved = self._saved[number]
        if saved is None:
            yield from self._read(slot, number)
        else:
            self._runner.kv.load(slot, [saved], self._lengths[number])

    def _read(self, slot: SlotId, number: int) -> Generator[None, None, None]:
        tokens = self._tokens[number][: self._lengths[number]]
        for start in range(0, len(tokens), self._chunk):
            yield from self._step([Slice(slot, start, tokens[start : start + self._chunk])])

    def _next(self, slot: SlotId, number: int, turn: int) -> Slice:
        at = self._lengths[number] + turn
        return Slice(slot, at, self._tokens[number][at : at + 1], DRAWN)
