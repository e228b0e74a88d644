"""The test whether the same tokens give the same logits, bit for bit, in every batch.

It runs in the load where a flag demands that, on the step thread. It takes the whole memory and leaves it empty. It
varies what kernels choose by: the rows of a step and the cells that it reads. Copied and shared cells are the same
bytes on every processor; tests/llama tries those. Where chunks are fixed, the test is repeated with other groupings
of rows until all bits are the same.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise, takewhile
from typing import NamedTuple

import numpy as np

from worker.config.engine_settings import Configure
from worker.engine.backend import Saved
from worker.engine.step import Slice
from worker.errors import ModelLoadFailed
from worker.llama.batch import RowGroups
from worker.llama.context import Logits
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SamplingParams, SlotId
from worker.wire.load import Determinism, Tried

MAX_OTHERS = 7
"""Together with the sequence itself they are the default number of slots."""

_ALL_TO = 16
"""Every width up to this is tried: ggml computes rows in groups of 2, 4, 8 and 16, and what is left of them apart."""
_SOME = (24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 192)
"""The wider ones that are tried: those about which a kernel or its tiles may change."""
_SHORT_LENGTHS = (9, 6, 12, 10)
"""The lengths of the prompts that share decode steps: they differ, so that a step finds them at different positions."""

_N_AFTER = 4
"""The number of tokens that are computed after a prompt."""
_N_DRAFT_ROWS = 9
"""The rows of a step with drafts: from eight rows on ggml has other kernels for K-quants."""
_PART, _MAX_PARTS = 24, 3
"""A prompt has one to three parts of this many tokens, as the context allows."""
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
Slots = Seq[SlotId]


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

    @property
    def n_after(self) -> int:
        """Tokens after a prompt that are computed alone: as many as a step with drafts has."""
        return _N_DRAFT_ROWS if self.has_drafts else _N_AFTER


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
    if serving.context_length - serving.n_after < _PART:
        return None
    can_pad = runner.context.can_pad
    choices = [one for one in ROW_GROUPINGS if one.most < serving.n_parallel and (one.multiple == 1 or can_pad)]
    *trials, last = choices if serving.is_fixed else [RowGroups()]
    trial = _Trials(runner, serving, alive)
    for groups in trials:
        found = trial.verdict(groups, is_last=False)
        if found.is_same:
            return found
    return trial.verdict(last, is_last=True)


def widths(n_slots: int) -> tuple[int, ...]:
    """The widths of decode steps to try for `n_slots` slots."""
    return tuple(sorted({*range(1, min(n_slots, _ALL_TO) + 1), *(n for n in _SOME if n < n_slots), n_slots}))


def in_words(found: Iterable[int]) -> str:
    """Ascending widths in words: `2 to 5 and 8`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(found), lambda pair: pair[1] - pair[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


class _Text(NamedTuple):
    """A prompt and what comes behind it, computed alone."""

    n_prompt: int
    rows: Rows
    """The row of the prompt's last token, and of each behind it."""
    saved: Saved | None
    """Its cells; None where they cannot be loaded in part."""


class _Trials:
    """The subject of a trial is in slot 0."""

    def __init__(self, runner: LlamaRunner, serving: Serving, alive: Callable[[], None]) -> None:
        self._runner, self._serving, self._alive, self._kv = runner, serving, alive, runner.kv
        self._n_prompt = _PART * min(_MAX_PARTS, (serving.context_length - serving.n_after) // _PART)
        self._n_loaded = 0
        """The cells that others have before."""
        self._short_lengths = _SHORT_LENGTHS[: serving.n_parallel]
        size = (2, 2 * (self._n_prompt + _N_DRAFT_ROWS))
        self._tokens, self._other = np.random.default_rng(0).integers(runner.model.n_vocab, size=size).tolist()

    def verdict(self, groups: RowGroups, *, is_last: bool) -> Determinism:
        """The verdict with these row groups. Only the last looks for all that differs."""
        self._runner.context.row_groups = groups
        cases: dict[int | str, bool] = {}
        each: Iterator[tuple[int | str, bool]] = chain(self._widths(), self._ways(self._n_prompt))
        for case, is_same in each:
            cases[case] = is_same
            if not is_same and not is_last:
                break
        self._kv.clear()
        differing = [case for case, is_same in cases.items() if not is_same]
        rows = [case for case in differing if isinstance(case, int)]
        of_rows = [f"in decode steps of {in_words(rows)} rows"] if rows else []
        return Determinism(
            is_same=not differing,
            differences=(*of_rows, *(case for case in differing if isinstance(case, str))),
            tried=Tried(
                prompts=len(self._short_lengths) + 1,
                widths=tuple(case for case in cases if isinstance(case, int)),
                ways=tuple(case for case in cases if isinstance(case, str)),
                row_multiple=groups.multiple,
                most_rows=groups.most,
            ),
        )

    def _widths(self) -> Iterator[tuple[int, bool]]:
        """Yield each width of decode steps, and whether all its rows are those of the texts alone, which take turns at
        the places of a step, others at each width."""
        texts = [self._alone(length) for length in self._short_lengths]
        n_most = self._runner.context.n_ctx // (max(self._short_lengths) + 1)
        for width in widths(min(self._serving.n_parallel, n_most)):
            self._kv.clear()
            order = [texts[(place + width) % len(texts)] for place in range(width)]
            for place, text in enumerate(order):
                if text.saved is not None:
                    self._kv.load(SlotId(place), [text.saved], text.n_prompt)
                else:
                    for start, end in pairwise([0, *self._edges(0, text.n_prompt)]):
                        self._step([Slice(SlotId(place), start, self._tokens[start:end])])
            starts = enumerate(text.n_prompt for text in order)
            rows = self._step([Slice(SlotId(place), at, [self._tokens[at]], _DRAWN) for place, at in starts])
            yield width, _same_bits(rows, [text.rows[1] for text in order])

    def _ways(self, n_prompt: int) -> Iterator[tuple[str, bool]]:
        """Yield each way to compute a prompt, and whether it gives the rows of the prompt alone."""
        text, is_fixed, chunk = self._alone(n_prompt), self._serving.is_fixed, self._serving.chunk
        after = range(n_prompt + 1, n_prompt + _N_AFTER + 1)
        if not is_fixed:
            if chunk < n_prompt:
                yield "in one step", self._is_same(text, 0, [n_prompt, *after])
            small = takewhile(lambda end: end < n_prompt, accumulate(_SMALL))
            yield "in small chunks", self._is_same(text, 0, [*small, n_prompt, *after])
        n_reused = (n_prompt - 1) // chunk * chunk if is_fixed else n_prompt - 1
        can_reuse = text.saved is not None and n_reused > 0
        rest = self._edges(n_reused, n_prompt)
        if can_reuse and self._serving.has_drafts:
            yield "with draft tokens", self._is_same(text, n_reused, [*rest, n_prompt + _N_DRAFT_ROWS])
        parts = self._edges(0, n_prompt, 0 if is_fixed else n_prompt // _MAX_PARTS)
        n_own, room = len(parts) + _N_AFTER, self._runner.context.n_ctx - after[-1]
        n_others = min(MAX_OTHERS, self._serving.n_parallel - 1, room // n_own)
        if not n_others:
            return
        # One row over very many cells is computed otherwise. Where others' lie between its own, threads that share the
        # cells of a lone row must share the whole memory.
        if text.saved is not None:
            self._n_loaded = min(after[-1], room // n_others - n_own, self._serving.context_length - n_own)
        others = [SlotId(1 + i) for i in range(n_others)]
        yield f"beside {n_others} others", self._is_same(text, 0, [*parts, *after], others)
        if can_reuse:
            is_same = self._is_same(text, n_reused, [*rest, *after], silent=others)
            yield f"over the cells of {n_others} others", is_same

    def _alone(self, n_prompt: int) -> _Text:
        """Compute a text in chunks, as if others were generating."""
        self._kv.clear()
        ends = *self._edges(0, n_prompt), *range(n_prompt + 1, n_prompt + self._serving.n_after + 1)
        rows = self._rows(n_prompt, 0, ends)
        return _Text(n_prompt, rows, self._kv.save(_SUBJECT, 0) if self._kv.can_cut else None)

    def _is_same(self, text: _Text, start: int, ends: Iterable[int], others: Slots = (), silent: Slots = ()) -> bool:
        """Compute as `_rows` does, also over the cells of silent slots."""
        self._kv.clear()
        for slot, n_tokens in ((_SUBJECT, start), *((slot, self._n_loaded) for slot in (*others, *silent))):
            if n_tokens:
                assert text.saved is not None
                self._kv.load(slot, [text.saved], n_tokens)
        rows = self._rows(text.n_prompt, start, ends, others, self._n_loaded)
        return _same_bits(rows, text.rows[: len(rows)])

    def _rows(self, n_prompt: int, start: int, ends: Iterable[int], others: Slots = (), at: int = 0) -> Rows:
        """The rows of the text from `start` on, up to each of the ends in a step. The others go on from `at`."""
        rows: Rows = []
        for end in ends:
            is_prefill = end <= n_prompt
            tokens, is_drawn = self._tokens[start:end], _DRAWN if end >= n_prompt else None
            slices = [Slice(_SUBJECT, start, tokens, is_drawn, n_drafts=0 if is_prefill else len(tokens) - 1)]
            if not (is_prefill and self._serving.is_fixed):
                slices += [Slice(slot, at, [self._other[at]], _DRAWN) for slot in others]
                at += 1
            rows += self._step(slices)[: slices[0].n_rows]
            start = end
        return rows

    def _step(self, slices: Seq[Slice]) -> Rows:
        """All rows of a step, slice by slice."""
        rows: Rows = []
        for batch in self._runner.batches(slices):
            self._runner.context.decode(batch)
            rows.extend(self._runner.context.rows().copy())
        self._alive()
        return rows

    def _edges(self, start: int, n_prompt: int, size: int = 0) -> list[int]:
        """The ends of a prompt's chunks from `start` on, at multiples of the size; without one, of the chunk."""
        size = size or self._serving.chunk
        return [*range((start // size + 1) * size, n_prompt, size), n_prompt]


def _same_bits(rows: Rows, others: Rows) -> bool:
    """Return whether the rows are equal bit for bit; two values that are not numbers count as equal."""
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(rows, others, strict=True))
