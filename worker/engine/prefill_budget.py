"""How many tokens of prompts a step takes: as many as the gap between two tokens of the others has room for.

Owns the sizes of prefill steps. Knows neither whose tokens they are nor the clock: it is told what steps took. Pure;
step thread.
"""

GRAIN = 8
"""Tokens by which steps are made shorter and longer, and the least of them; slices end at multiples."""

CAUTION = 0.9
"""The next step takes this share of what would have fitted: it lies deeper in its prompt, and no two take the same."""

MOST_GROWTH = 1.25
"""From one step to the next, or a grain: what a much longer step costs is only known when it is taken."""

MOST_GAP = 1.2
"""Between two tokens of a stream while prompts are read, in ITL targets: a prefill and a decode step. Single ones take
longer than their like before, and all but one of a hundred are to stay under 1.5 targets."""

LEAST_SHARE = 1 / 3
"""Of the gap, for prompts, however long decode steps take: or they would never be read."""


class PrefillBudget:
    def __init__(self, *, chunk: int, widest_step: int, itl_target_s: float, is_fixed: bool = False) -> None:
        """`chunk`: tokens of a prefill step while somebody generates, at first; `widest_step` while nobody does, at
        least a chunk. `is_fixed`: a prefill step is one chunk whatever it takes.
        """
        self.is_fixed = is_fixed
        self.grain = chunk if is_fixed else min(GRAIN, chunk)
        """Slices end at its multiples, or with their prompt."""
        self.widest = chunk if is_fixed else max(chunk, widest_step)
        """The size while nobody generates."""
        self.size = chunk
        """The size while somebody does."""
        self._most = min(2 * chunk, self.widest)
        self._most_gap_s = MOST_GAP * itl_target_s
        self._decode_s = 0.0

    def decode_took(self, seconds: float) -> None:
        self._decode_s = seconds

    def prefill_took(self, n_tokens: int, seconds: float) -> None:
        """A prefill step that held up others took so long: later ones are made to fit, as far as that goes.

        A step behind a long prompt costs more than the same step at warm-up, because attention looks at all of it.
        """
        room_s = max(self._most_gap_s - self._decode_s, self._most_gap_s * LEAST_SHARE)
        n_fitting = n_tokens * room_s / max(seconds, 1e-6)
        n_next = min(CAUTION * n_fitting, max(MOST_GROWTH * self.size, self.size + self.grain))
        n_whole = int(n_next) // self.grain * self.grain
        is_too_long = n_fitting < n_tokens
        if not self.is_fixed and (is_too_long or n_whole > self.size):
            self.size = min(max(n_whole, self.grain), self._most)
