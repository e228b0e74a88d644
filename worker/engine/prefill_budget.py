"""How many tokens of prompts a step takes: as many as the gap between two tokens of the other jobs has room for.

Owns the sizes of prefill steps. Knows neither whose tokens they are nor the clock: it is told how long steps took.
Pure; step thread.
"""

from worker.engine.backend import MAX_DRAFTS

LEAST_CHUNK = 16
"""The first size of a step is at least so many tokens."""

WIDENING = 4
"""How many chunks long a prefill step is while nobody generates. Wider ones gain nothing on a CPU (430 tokens: 1.61 s
in steps of 32, 1.58 of 64, 1.53 of 128, 1.55 of 256), and whoever arrives meanwhile would wait for longer."""

GRAIN = 8
"""Steps are made shorter and longer by so many tokens, and have at least so many; slices end at multiples of them."""

CAUTION = 0.9
"""The next step has this share of the tokens that would have fitted: it lies deeper in its prompt, and no two steps
take the same time."""

MOST_GROWTH = 1.25
"""A step is at most this many times as large as the last one, or one grain larger: what a much larger step costs is
only known when it has run."""

MOST_GAP = 1.2
"""How many ITL targets a prefill and a decode step take together, which is the gap between two tokens of a stream while
prompts are read. Single steps take longer than those like them before, and 99 of 100 gaps are to stay under 1.5
targets."""

LEAST_SHARE = 1 / 3
"""Prompts have at least this share of the gap, however long decode steps take, or they would never be read."""


def widest_step_of(chunk: int, n_ubatch: int) -> int:
    """How many tokens a step has while nobody generates, where `chunk` is chosen by the machine's speed.

    A machine that is slow with the least chunk already must not fall silent for longer.
    """
    return min(n_ubatch, WIDENING * chunk) if chunk > LEAST_CHUNK else chunk


class PrefillBudget:
    def __init__(self, *, chunk: int, widest_step: int, itl_target_s: float, is_fixed: bool = False) -> None:
        """`chunk`: how many tokens a prefill step has at first while somebody generates; `widest_step`: how many while
        nobody does, at least a chunk. `is_fixed`: a prefill step is one chunk, however long it takes.
        """
        self.is_fixed = is_fixed
        self.grain = chunk if is_fixed else min(GRAIN, chunk)
        """Slices end at multiples of so many tokens, or with their prompt."""
        self.widest = chunk if is_fixed else max(chunk, widest_step)
        """How many tokens a step has while nobody generates."""
        self.size = chunk
        """How many tokens a step has while somebody generates."""
        self.most_scored = chunk if is_fixed else MAX_DRAFTS
        """Of how many tokens a step gives log-probabilities: of a fixed chunk all, else as many as there are rows of
        logits for. Scoring a row takes so long beside computing it that wider steps would gain little."""
        self._most = min(2 * chunk, self.widest)
        self._most_gap_s = MOST_GAP * itl_target_s
        self._decode_s = 0.0

    def decode_took(self, seconds: float) -> None:
        self._decode_s = seconds

    def prefill_took(self, n_tokens: int, seconds: float) -> None:
        """A prefill step that held up others took so long: later ones are made to fit the gap, as far as that goes.

        A step behind a long prompt costs more than the same step at warm-up, because attention looks at all of it.
        """
        room_s = max(self._most_gap_s - self._decode_s, self._most_gap_s * LEAST_SHARE)
        n_fitting = n_tokens * room_s / max(seconds, 1e-6)
        n_next = min(CAUTION * n_fitting, max(MOST_GROWTH * self.size, self.size + self.grain))
        n_whole = int(n_next) // self.grain * self.grain
        is_too_long = n_fitting < n_tokens
        if not self.is_fixed and (is_too_long or n_whole > self.size):
            self.size = min(max(n_whole, self.grain), self._most)
