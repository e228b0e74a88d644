"""The number of tokens of prompts that a step takes.

- While somebody generates: as many as the gap between two tokens of his has room for.
- While nobody does, a prompt that is alone is read in steps as wide as they can be, and a newcomer stops the step that
  is in his way. Where steps cannot be stopped, they are so short that he can wait.

Owns the sizes of prefill steps, and what a prompt may lose to newcomers. Knows neither whose tokens they are nor the
clock: it is told how long steps took. Pure; step thread.
"""

from math import inf

from worker.engine.prefill_times import PrefillTimes
from worker.limits import MAX_DRAFTS

MIN_CHUNK = 16
"""Steps have at least so many tokens, as far as there are so many; a large model would be read in crumbs else."""

WIDENING = 4
"""How many chunks long a prefill step is while nobody generates, where it cannot be stopped: whoever arrives meanwhile
waits for it. While several prompts wait, others are read along with the first for so many targets."""

GRAIN = 8
"""Steps are made shorter and longer by so many tokens; slices end at multiples of them."""

TILE = 64
"""From so many tokens on llama.cpp may compute attention in tiles, each of so many. A few tokens more cost as much as
half a tile: behind 600 cells a token of a step of 56 takes 8.2 ms, of 64 6.9, of 72 7.6, of 96 7.1 and of 128 6.6."""

MAX_GROWTH = 1.5
"""A step is at most this many times as large as one that has run lately, or one grain larger: what a much larger step
costs is only known when it has run."""

MAX_GAP = 1.3
"""How many ITL targets a prefill and a decode step take together, which is the gap between two tokens of a stream while
prompts are read. Single steps take a tenth longer than those like them before, and gaps are to stay under 1.5 targets.
"""

MIN_DECODES = 3
"""A prefill step may take as long as so many decode steps, however long these are. In the time of one it would read the
weights again for a handful of tokens: of 7B parameters a decode step takes 175 ms on two cores, and 150 of them for the
weights."""

PROMPTS_SHARE = 15 / 16
"""Where decode steps take long, the gap is made longer until prompts have this share of it, for the same reason."""
WHOLE_SHARE = 0.08
"""The gap is not made longer for that than this share of the time in which the prompts could be read at once. A server
that reads prompts first would let its streams wait for all of it."""
LONGEST_GAP = 8.0
"""Nor is it made longer than so many targets."""

EARNED_SHARE = 1 / 8
"""Steps that are stopped for newcomers may cost a prompt one micro-batch, and this share of what it has computed."""


def widest_step_of(chunk: int, n_ubatch: int, *, can_abort: bool) -> int:
    """How many tokens a step has while nobody generates, where `chunk` is chosen by the machine's speed.

    If it cannot be stopped, a machine that is slow with the least chunk already must not fall silent for longer.
    """
    if can_abort:
        return n_ubatch
    return min(n_ubatch, WIDENING * chunk) if chunk > MIN_CHUNK else chunk


class PrefillBudget:
    def __init__(
        self,
        *,
        chunk: int,
        widest_step: int,
        itl_target_s: float,
        chunk_s: float = 0.0,
        row_s: float = 0.0,
        can_abort: bool = False,
        is_fixed: bool = False,
    ) -> None:
        """`chunk`: how many tokens a prefill step has at first while somebody generates; `widest_step`: how many while
        nobody does, at least a chunk; `chunk_s`, `row_s`: what a chunk took at warm-up and a decode step of one token,
        0 where that is not known. `can_abort`: a step can be stopped for a newcomer. `is_fixed`: a prefill step is one
        chunk, however long it takes.
        """
        self.is_fixed = is_fixed
        self.grain = chunk if is_fixed else min(GRAIN, chunk)
        """Slices end at multiples of so many tokens, or with their prompt."""
        self.widest = chunk if is_fixed else max(chunk, widest_step)
        """The number of tokens that a step has at most."""
        self.most_scored = chunk if is_fixed else MAX_DRAFTS
        """Of how many tokens a step gives log-probabilities: of a fixed chunk all, else as many as there are rows of
        logits for. Scoring a row takes so long beside computing it that wider steps would gain little."""
        self.can_abort = can_abort and not is_fixed
        self.target_s = itl_target_s
        self._chunk = chunk
        self._largest = self._asked = chunk
        """The largest step that has run while somebody generated, and the size that the last one was to have."""
        first_s = chunk_s or (itl_target_s if itl_target_s < inf else 1e-3 * chunk)
        # Wide steps are computed by other kernels than narrow ones, and say nothing of these.
        self._beside, self._alone = PrefillTimes(chunk, first_s), PrefillTimes(chunk, first_s)
        self._decode_s = 0.0
        self._least_decode_s = inf
        if row_s:
            self._set_base(row_s)

    # ── sizes ────────────────────────────────────────────────────────────────────────────────────

    def size_beside(self, n_whole: int, depth: int) -> int:
        """How many tokens a step has while somebody generates. `n_whole`: how many tokens all prompts have together
        that are being read; `depth`: how many cells lie before the next of the deepest.
        """
        if self.is_fixed:
            return self._chunk
        n_fitting = self._beside.n_within(self._room_s(n_whole), depth)
        self._asked = self._whole(n_fitting, max(MAX_GROWTH * self._largest, self._largest + self.grain))
        return self._asked

    def size_within(self, n_targets: float, depth: int) -> int:
        """The number of tokens that a step has while nobody generates that takes so many targets."""
        return self._whole(self._alone.n_within(n_targets * self.target_s, depth), self.widest)

    def _whole(self, n_fitting: float, n_most: float) -> int:
        if TILE < n_fitting < 1.5 * TILE:
            n_fitting = TILE
        least = min(MIN_CHUNK, self._chunk) // self.grain * self.grain
        return max(least, int(min(n_fitting, n_most, self.widest)) // self.grain * self.grain)

    def _room_s(self, n_whole: int) -> float:
        """The seconds that a prefill step may take between two decode steps."""
        least_gap_s = MAX_GAP * self.target_s
        whole_s = self._beside.seconds_of(n_whole, n_whole / 2)
        wanted_s = min(self._decode_s / (1 - PROMPTS_SHARE), WHOLE_SHARE * whole_s, LONGEST_GAP * self.target_s)
        return max(max(least_gap_s, wanted_s) - self._decode_s, MIN_DECODES * self._decode_s)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def most_lost(self, n_computed: int, n_lost: int) -> int:
        """How many tokens a prompt may lose with the next step, after so many that it has computed and lost."""
        return max(0, self.widest + int(EARNED_SHARE * n_computed) - n_lost)

    def expected_s(self, n_tokens: int, depth: float) -> float:
        """The seconds of a step while nobody generates."""
        return self._alone.seconds_of(n_tokens, depth)

    # ── learning ─────────────────────────────────────────────────────────────────────────────────

    def decode_took(self, seconds: float) -> None:
        self._decode_s = seconds
        if seconds < self._least_decode_s:
            self._set_base(seconds)

    def _set_base(self, seconds: float) -> None:
        self._least_decode_s = self._beside.base_s = self._alone.base_s = seconds

    def took_beside(self, n_tokens: int, depth: float, seconds: float) -> None:
        """A prefill step that held up others took so long. The end of a prompt says little: a few tokens take long for
        their number, because the weights are read once all the same.
        """
        if 2 * n_tokens >= self._asked or seconds > MAX_GAP * self.target_s:
            self._beside.took(n_tokens, depth, seconds)
            self._largest = max(n_tokens, self._largest)

    def took_alone(self, n_tokens: int, depth: float, seconds: float) -> None:
        if 2 * n_tokens >= self._chunk:
            self._alone.took(n_tokens, depth, seconds)
