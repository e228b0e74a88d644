"""The test whether the same tokens give the same logits, bit for bit, in all the ways in which they are computed.

It runs in the load where a flag demands that, on the step thread. It takes the whole memory and leaves it empty.

First come decode steps of every width that jobs can make, then a prompt and a few tokens after it, computed alone and
in every other way that serving has. The rows of logits that a token would be drawn from are compared. Where chunks are
fixed, the test is repeated with other groupings of rows until all bits are the same.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, takewhile

import numpy as np

from worker.config.engine_settings import Configure
from worker.engine.backend import Saved
from worker.engine.step import Slice
from worker.errors import ModelLoadFailed
from worker.llama.batch import RowGroups
from worker.llama.context import Context, Logits
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SamplingParams, SlotId, TokenId
from worker.wire.load import Determinism, Tried

MAX_OTHERS = 7
"""Together with the sequence itself they are the default number of slots."""

_ALL_TO = 16
"""Every width up to this is tried: ggml computes rows in groups of 2, 4, 8 and 16, and what is left of them apart."""
_SOME = (24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 192)
"""The wider ones that are tried: those about which a kernel or its tiles may change."""
_SHORT_LENGTHS = (9, 6, 12, 10)
"""The lengths of the prompts that share decode steps: they differ, so that a step finds them at different positions."""
_N_ROUNDS = 3
"""The tokens of each of these that are computed if chunks are fixed; else one."""

_N_AFTER = 4
"""The number of tokens that are computed after the prompt."""
_N_DRAFT_ROWS = 9
"""The rows of a step with drafts: from eight rows on ggml has other kernels for K-quants."""
_PART, _MAX_PARTS = 24, 3
"""A prompt has one to three parts of this many tokens, as the context allows."""
_MORE_LENGTHS = (65, 3)
"""The lengths of further prompts if chunks are fixed: a chunk and a token more, and hardly any."""
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
_DRAWN = SamplingParams(seed=0, temperature=0.0)
"""Marks a slice whose logits are wanted; nothing is drawn."""

Rows = list[Logits]
"""Copies of rows of logits."""
Step = Callable[[Seq[Slice]], Rows]
"""Computes a step and returns all its rows, slice by slice."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The ways in which this engine computes; a way that it never takes is not tested."""

    chunk: int
    is_fixed: bool
    """Prompts are cut at multiples of the chunk only, whatever else there is to do, and no step has parts of two."""
    n_parallel: int
    """Jobs that may generate at once."""
    has_drafts: bool
    context_length: int


def demanded(config: Configure, runner: LlamaRunner, serving: Serving, alive: Callable[[], None]) -> Determinism:
    """Test a model whose numbers must not depend on other jobs. `alive` is called after each step.

    Raises: ModelLoadFailed if they do, or if that cannot be tested.
    """
    flag = config.invariance_flag
    found = self_test(runner, serving, alive)
    if found is None:
        raise ModelLoadFailed(
            f"{flag}: a context of {serving.context_length} tokens is too short to test that answers do not depend on "
            f"other jobs. Use --ctx-size 64 or more; or remove {flag}"
        )
    if not found.is_same:
        raise ModelLoadFailed(
            f"{flag}: an answer would depend on other jobs: logits differ {', '.join(found.differences)}. "
            "Use --device cpu and the defaults of --cache-type-k, --cache-type-v, --flash-attn, --swa-full and "
            f"--ubatch-size, or another model; or remove {flag}"
        )
    return found


def self_test(runner: LlamaRunner, serving: Serving, alive: Callable[[], None] = lambda: None) -> Determinism | None:
    """Return the verdict; None if the context is too short for the sequence.

    Where chunks are fixed the runner's row groups are set to the first that leave nothing that differs, or to the last
    of all. Bits choose them and not times, so that they are the same again after a restart.
    """
    if serving.context_length - _n_after_alone(serving) < _PART:
        return None
    *trials, last = _choices(runner, serving)
    for groups in trials:
        found = _verdict(runner, serving, groups, alive, is_last=False)
        if found.is_same:
            return found
    return _verdict(runner, serving, last, alive, is_last=True)


def _choices(runner: LlamaRunner, serving: Serving) -> list[RowGroups]:
    """The row groups to try; where chunks are not fixed, only llama.cpp's own."""
    if not serving.is_fixed:
        return [RowGroups()]
    can_pad = runner.context.can_pad
    return [one for one in ROW_GROUPINGS if one.most < serving.n_parallel and (one.multiple == 1 or can_pad)]


def _verdict(
    runner: LlamaRunner, serving: Serving, groups: RowGroups, alive: Callable[[], None], *, is_last: bool
) -> Determinism:
    """The verdict with these row groups. Only the last looks for all that differs."""
    runner.context.row_groups = groups

    def step(slices: Seq[Slice]) -> Rows:
        rows: Rows = []
        for batch in runner.batches(slices):
            rows += [runner.context.logits(index).copy() for index in runner.context.decode(batch)]
        alive()
        return rows

    lengths = _prompt_lengths(serving)
    cases: dict[int | str, bool] = {}
    for case, is_same in _compared(runner, serving, step, lengths):
        cases[case] = is_same and cases.get(case, True)
        if not is_same and not is_last:
            break
    runner.kv.clear()
    differing = [case for case, is_same in cases.items() if not is_same]
    widths = [case for case in differing if isinstance(case, int)]
    of_widths = [f"in decode steps of {in_words(widths)} rows"] if widths else []
    return Determinism(
        is_same=not differing,
        differences=(*of_widths, *(case for case in differing if isinstance(case, str))),
        tried=Tried(
            prompts=len(_SHORT_LENGTHS[: serving.n_parallel]) + len(lengths),
            widths=tuple(case for case in cases if isinstance(case, int)),
            ways=tuple(case for case in cases if isinstance(case, str)),
            row_multiple=groups.multiple,
            most_rows=groups.most,
        ),
    )


def _compared(runner: LlamaRunner, serving: Serving, step: Step, lengths: Seq[int]) -> Iterator[tuple[int | str, bool]]:
    """Yield each width of decode steps, then each way to compute each prompt, and whether it gives the same bits."""
    shared = _SharedSteps(runner, serving, step)
    for width in shared.widths:
        yield width, shared.is_same_at(width)
    for seed, length in enumerate(lengths):
        ways = _Ways(runner, serving, length, step, seed=seed)
        runner.kv.clear()
        alone = ways.alone()
        for name, compute in ways.others():
            runner.kv.clear()
            rows = compute()
            yield name, same_bits(rows, alone[: len(rows)])


def _prompt_lengths(serving: Serving) -> list[int]:
    n_parts = min(_MAX_PARTS, (serving.context_length - _n_after_alone(serving)) // _PART)
    more = [n for n in _MORE_LENGTHS if n <= serving.context_length - _N_AFTER] if serving.is_fixed else []
    return [n_parts * _PART, *more]


def _n_after_alone(serving: Serving) -> int:
    """Tokens after the prompt that are computed alone: as many as a step with drafts has."""
    return _N_DRAFT_ROWS if serving.has_drafts else _N_AFTER


def same_bits(rows: Rows, others: Rows) -> bool:
    """Return whether the rows are equal bit for bit; two values that are not numbers count as equal."""
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(rows, others, strict=True))


# ── decode steps of every width ──────────────────────────────────────────────────────────────────


def widths(n_slots: int) -> tuple[int, ...]:
    """The widths to try for `n_slots` slots."""
    return tuple(sorted({*range(1, min(n_slots, _ALL_TO) + 1), *(n for n in _SOME if n < n_slots), n_slots}))


def in_words(found: Iterable[int]) -> str:
    """Ascending widths in words: `2 to 5 and 8`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(found), lambda pair: pair[1] - pair[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


class _SharedSteps:
    """Short sequences that share decode steps. Each is computed alone first, and every row of a step is compared, so
    that all places in it are looked at."""

    def __init__(self, runner: LlamaRunner, serving: Serving, step: Step) -> None:
        self._runner, self._step, self._chunk = runner, step, serving.chunk
        self._n_rounds = _N_ROUNDS if serving.is_fixed else 1
        self._lengths = _SHORT_LENGTHS[: serving.n_parallel]
        longest = max(self._lengths) + self._n_rounds
        size = (len(self._lengths), longest)
        self._tokens: list[list[TokenId]] = np.random.default_rng(1).integers(runner.model.n_vocab, size=size).tolist()
        self.widths = widths(min(serving.n_parallel, runner.context.n_ctx // longest))
        self._saved: list[Saved | None] = []
        self._alone = [self._compute_alone(number) for number in range(len(self._lengths))]

    def _compute_alone(self, number: int) -> Rows:
        self._runner.kv.clear()
        self._read(_SUBJECT, number)
        rows: Rows = []
        for turn in range(self._n_rounds):
            rows += self._step([self._next(_SUBJECT, number, turn)])
        self._saved.append(self._runner.kv.save(_SUBJECT, 0) if self._runner.kv.can_cut else None)
        return rows

    def is_same_at(self, width: int) -> bool:
        """Return whether every row of steps of `width` rows is the one that was computed alone.

        Prompts take turns at the places of a step, others at each width and in each round.
        """
        self._runner.kv.clear()
        numbers = [(place + width) % len(self._lengths) for place in range(width)]
        for place, number in enumerate(numbers):
            saved = self._saved[number]
            if saved is None:
                self._read(SlotId(place), number)
            else:
                self._runner.kv.load(SlotId(place), [saved], self._lengths[number])
        are_same = True
        for turn in range(self._n_rounds):
            order = [*range(turn % width, width), *range(turn % width)]
            rows = self._step([self._next(SlotId(place), numbers[place], turn) for place in order])
            are_same &= same_bits(rows, [self._alone[numbers[place]][turn] for place in order])
        return are_same

    def _read(self, slot: SlotId, number: int) -> None:
        tokens = self._tokens[number][: self._lengths[number]]
        for start in range(0, len(tokens), self._chunk):
            self._step([Slice(slot, start, tokens[start : start + self._chunk])])

    def _next(self, slot: SlotId, number: int, turn: int) -> Slice:
        at = self._lengths[number] + turn
        return Slice(slot, at, self._tokens[number][at : at + 1], _DRAWN)


# ── a prompt in every way ────────────────────────────────────────────────────────────────────────


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


class _Ways:
    """The sequence, in slot 0, and the ways to compute it, each in memory that is empty."""

    def __init__(self, runner: LlamaRunner, serving: Serving, n_prompt: int, step: Step, *, seed: int) -> None:
        self._runner, self._step = runner, step
        self._chunk = serving.chunk
        self._serving = serving
        self._n_prompt = n_prompt
        self._end = n_prompt + _N_AFTER
        self._after = range(n_prompt + 1, self._end + 1)
        self._beside = self._edges(0, serving.chunk if serving.is_fixed else n_prompt // _MAX_PARTS)
        self._neighbours = _Neighbours.beside(runner.context, serving, n_steps=len(self._beside), n_cells=self._end)
        size = (2, 2 * (n_prompt + _N_DRAFT_ROWS))
        self._subject, self._other = np.random.default_rng(seed).integers(runner.model.n_vocab, size=size).tolist()
        self._n_reused = (n_prompt - 1) // serving.chunk * serving.chunk if serving.is_fixed else n_prompt - 1
        self._saved: Saved | None = None

    def alone(self) -> Rows:
        """Compute in chunks, as if others were generating. The cells are kept for other ways."""
        end = self._n_prompt + _n_after_alone(self._serving)
        rows = self._compute(0, [*self._edges(0, self._chunk), *range(self._n_prompt + 1, end + 1)])
        if self._runner.kv.can_cut:
            self._saved = self._runner.kv.save(_SUBJECT, 0)
        return rows

    def others(self) -> Iterator[tuple[str, Callable[[], Rows]]]:
        """Yield the name of a difference, and the way that shows it."""
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

    def _in_one_step(self) -> Rows:
        return self._compute(0, [self._n_prompt, *self._after])

    def _in_small_chunks(self) -> Rows:
        edges = [*takewhile(lambda edge: edge < self._n_prompt, accumulate(_SMALL)), self._n_prompt]
        return self._compute(0, [*edges, *self._after])

    def _with_drafts(self, saved: Saved) -> Rows:
        """The tokens after the prompt are all drafts but the first, and all right."""
        self._runner.kv.load(_SUBJECT, [saved], self._n_reused)
        rows = self._compute(self._n_reused, self._edges(self._n_reused, self._chunk))
        tokens = self._subject[self._n_prompt : self._n_prompt + _N_DRAFT_ROWS]
        return rows + self._step([Slice(_SUBJECT, self._n_prompt, tokens, _DRAWN, n_drafts=_N_DRAFT_ROWS - 1)])

    def _from_the_cache(self, saved: Saved) -> Rows:
        """Load the cells in two parts, because a cached prefix is rarely one."""
        self._runner.kv.load(_SUBJECT, saved.split(self._n_prompt // 3), self._n_reused)
        return self._compute_rest()

    def _sharing(self, saved: Saved) -> Rows:
        source = SlotId(1)
        self._runner.kv.load(source, [saved], self._end)
        self._runner.kv.share(source, _SUBJECT, self._n_reused)
        return self._compute_rest()

    def _where_others_left(self) -> Rows:
        """Their cells lay before its own, and its later ones may not go there."""
        theirs = self._other[: len(self._beside) * self._neighbours.n_each + _N_AFTER]
        for slot in self._neighbours.slots:
            for start in range(0, len(theirs), self._chunk):
                self._step([Slice(slot, start, theirs[start : start + self._chunk])])
        first, *edges = self._beside
        rows = self._compute(0, [first])
        for slot in self._neighbours.slots:
            self._runner.kv.trim(slot, 0)
        return rows + self._compute(first, [*edges, *self._after])

    def _beside_others(self) -> Rows:
        at = self._load_others(self._saved) if self._saved is not None else 0
        return self._compute(0, [*self._beside, *self._after], self._neighbours.slots, at)

    def _over_cells(self, saved: Saved) -> Rows:
        """Theirs lie between its own: threads that share the cells of a lone row must then share the sequence."""
        self._runner.kv.load(_SUBJECT, [saved], self._n_reused)
        self._load_others(saved)
        return self._compute_rest()

    def _load_others(self, saved: Saved) -> int:
        """Load saved cells into the neighbours' slots. Return the number of cells that each neighbour has."""
        n_loaded = self._neighbours.n_loaded
        for slot in self._neighbours.slots if n_loaded else ():
            self._runner.kv.load(slot, [saved], n_loaded)
        return n_loaded

    def _compute_rest(self) -> Rows:
        return self._compute(self._n_reused, [*self._edges(self._n_reused, self._chunk), *self._after])

    def _compute(self, start: int, ends: Iterable[int], others: Seq[SlotId] = (), at: int = 0) -> Rows:
        """The sequence from `start` on, up to each of the ends in a step; in each the others go on from `at`."""
        rows: Rows = []
        for end in ends:
            other_end = at + (self._neighbours.n_each if end <= self._n_prompt else 1)
            own = Slice(_SUBJECT, start, self._subject[start:end], _DRAWN if end >= self._n_prompt else None)
            beside = [Slice(slot, at, self._other[at:other_end], _DRAWN) for slot in others]
            if beside and self._serving.is_fixed and end <= self._n_prompt:
                rows += self._step([own])
                self._step(beside)
            else:
                rows += self._step([own, *beside])[: own.n_rows]
            start, at = end, other_end
        return rows

    def _edges(self, start: int, size: int) -> list[int]:
        """The ends of the prompt's chunks from `start` on, at multiples of the size."""
        return [*range((start // size + 1) * size, self._n_prompt, size), self._n_prompt]
