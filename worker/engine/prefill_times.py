"""A model of the times of prefill steps, learned from those that ran: the weights are read once, then each token adds.

A token's attention looks at all cells before it, so that after a long context a token takes several times as long as at
the start of a prompt. This is pure and runs on the step thread.
"""

from collections import deque
from math import inf, sqrt
from statistics import fmean, median

_N_SEEN = 32
"""The number of steps that are remembered."""
_N_LAST = 7
"""The number of last steps that show how fast the machine is now."""

_NOISE = 1.15
"""Steps may take this many times as long as earlier ones of their kind without a lasting reason."""

_USUAL_SLOPE = 1e-3
"""The time that a cell before a token adds, as a share of the token's, until steps of different depths have run. A
model of 135M has 0.8e-3, one of 1.5B 0.7e-3 (K in bf16, two cores)."""
_DOUBT_CELLS = 60.0
"""The distance in cells of two steps whose times say as much about that share as the usual one, with a spread of 6 % in
single steps' times."""

_MIN_SHARE = 0.1
"""Tokens take at least this share of a step's time, and one at the beginning of a prompt at least this share of what
one has taken on average."""


class PrefillTimes:
    def __init__(self, n_tokens: int, seconds: float) -> None:
        """Start from one step at the start of a prompt, with its tokens and its assumed seconds."""
        self.base_s = 0.0
        """The time of a step without that of its tokens, as far as is known: a step of one token takes little more."""
        self._seen: deque[tuple[int, float, float]] = deque([(n_tokens, n_tokens / 2, seconds)], maxlen=_N_SEEN)
        """(tokens, average number of cells before each, seconds), the oldest first."""

    def took(self, n_tokens: int, depth: float, seconds: float) -> None:
        """Learn from a step. `depth` is the average number of cells before a token of it."""
        self._seen.append((n_tokens, depth, max(seconds, 1e-6)))

    def seconds_of(self, n_tokens: int, depth: float) -> float:
        return self.base_s + n_tokens * self._token_s(depth)[0]

    def n_within(self, seconds: float, start: int) -> float:
        """Return how many tokens a step of one prompt from position `start` on computes in that time."""
        if seconds == inf:
            return inf
        room_s = max(0.0, seconds - self.base_s)
        first_s, slope_s = self._token_s(start)
        return 2 * room_s / (first_s + sqrt(first_s**2 + 2 * slope_s * room_s))

    def _token_s(self, depth: float) -> tuple[float, float]:
        """Return the seconds of a token at this depth by the last steps, and what each further cell adds. If the
        machine has become slower, this counts at once: a single step that was delayed makes only one other step
        shorter.
        """
        seen = [(at, max(seconds - self.base_s, _MIN_SHARE * seconds) / n) for n, at, seconds in self._seen]
        slope_s = _slope(seen)
        last = [token_s + slope_s * (depth - at) for at, token_s in seen[-_N_LAST:]]
        usual_s = median(last)
        min_s = _MIN_SHARE * fmean(token_s for _, token_s in seen)
        return max(last[-1] if last[-1] > _NOISE * usual_s else usual_s, min_s), slope_s


def _slope(seen: list[tuple[float, float]]) -> float:
    """Return the seconds that a cell adds to a token's time, by the line through all (depth, seconds) and the usual
    one."""
    mean_depth, mean_s = fmean(depth for depth, _ in seen), fmean(token_s for _, token_s in seen)
    spread = sum((depth - mean_depth) ** 2 for depth, _ in seen)
    rise = sum((depth - mean_depth) * (token_s - mean_s) for depth, token_s in seen)
    doubt = _DOUBT_CELLS**2
    return max(0.0, (rise + doubt * _USUAL_SLOPE * mean_s) / (spread + doubt))
