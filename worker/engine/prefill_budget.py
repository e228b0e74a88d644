"""The prefill budget: how many tokens of prompts a step takes, and how much a prompt may lose to new jobs.

While other jobs generate, a step takes as many as the gap between two of their tokens has room for. While none does, a
prompt that is alone is read in steps as wide as they can be, and a new job stops a step that delays it. If steps cannot
be stopped, they are short enough for a new job to wait.
"""

from collections import deque
from math import inf, sqrt
from statistics import fmean, median

from worker.engine.config import EngineConfig
from worker.limits import MAX_DRAFTS

MIN_CHUNK = 16
"""The least number of tokens in a step, if there are as many. Otherwise a large model would read prompts in crumbs."""
WIDENING = 4
"""The number of chunks in a prefill step while no job generates, if it cannot be stopped: a new job waits for it. If
several prompts wait, others are read along with the first for as many targets."""
GRAIN = 8
"""The number of tokens by which steps grow and shrink; slices end at multiples of it."""
TILE = 64
"""The number of tokens in a tile of llama.cpp's attention. A few tokens more cost as much as half a tile: after 600
cells a token of a step of 56 takes 8.2 ms, of 64 6.9, of 72 7.6, of 96 7.1 and of 128 6.6."""
MAX_GROWTH = 1.5
"""A step is at most this many times as large as one that has run lately, or one grain larger: the cost of a much larger
step is unknown until it has run."""
MAX_GAP = 1.3
"""The number of ITL targets that a prefill and a decode step take together; this is the gap between two tokens of a
stream while prompts are read. Single steps take a tenth longer than earlier ones of their kind, and gaps should stay
under 1.5 targets."""

MIN_DECODES = 3
"""The number of decode steps that a prefill step may take as long as, however long these are. In the time of one it
would read the weights again for a handful of tokens: with 7B parameters a decode step takes 175 ms on two cores, and
150 of them for the weights."""

PROMPTS_SHARE = 15 / 16
"""The share of the gap for prompts up to which it grows if decode steps take long, for the same reason."""
WHOLE_SHARE = 0.08
"""The gap grows for that reason to this share of the time in which the prompts could be read at once, at most. A server
that reads prompts first would let its streams wait for all of it."""
LONGEST_GAP = 8.0
"""The gap never grows beyond this number of targets."""

EARNED_SHARE = 1 / 8
"""Steps that are stopped for new jobs may cost a prompt one micro-batch, and this share of its computed tokens."""


def widest_step_of(chunk: int, n_ubatch: int, *, can_abort: bool) -> int:
    """Return how many tokens a step has while no job generates, if `chunk` was chosen by the machine's speed.

    If a step cannot be stopped, a machine that is slow even with the smallest chunk must not be silent for longer.
    """
    if can_abort:
        return n_ubatch
    return min(n_ubatch, WIDENING * chunk) if chunk > MIN_CHUNK else chunk


class PrefillBudget:
    def __init__(self, config: EngineConfig, *, can_abort: bool) -> None:
        """`can_abort` says that a step can be stopped for a new job. If steps are fixed, a prefill step is one chunk,
        however long it takes."""
        chunk, is_fixed = config.chunk, config.is_deterministic
        self.is_fixed = is_fixed
        self.grain = chunk if is_fixed else min(GRAIN, chunk)
        """Slices end at multiples of this number of tokens, or with their prompt."""
        self.widest = chunk if is_fixed else max(chunk, config.widest_step)
        """The largest number of tokens in a step."""
        self.most_scored = chunk if is_fixed else MAX_DRAFTS
        """The number of tokens whose log-probabilities a step gives: all of a fixed chunk, otherwise as many as there
        are rows of logits. Scoring a row takes so long compared with computing it that wider steps would gain little.
        """
        self.can_abort = can_abort and not is_fixed
        self.target_s = config.itl_target_s
        self._chunk = chunk
        self._largest = self._asked = chunk
        """The largest step that has run while other jobs generated, and the size that was asked of the last one."""
        first_s = config.chunk_s or (self.target_s if self.target_s < inf else 1e-3 * chunk)
        # Wide steps use other kernels than narrow ones, so their times say nothing about these.
        self._beside, self._alone = PrefillTimes(chunk, first_s), PrefillTimes(chunk, first_s)
        self._decode_s = 0.0
        self._least_decode_s = inf
        if config.row_costs:
            self._set_base(config.row_costs[0][1])

    def size_beside(self, n_whole: int, depth: int) -> int:
        """Return how many tokens a step has while other jobs generate. `n_whole` is the number of tokens of all prompts
        that are being read; `depth` is the number of cells before the next token of the deepest.
        """
        if self.is_fixed:
            return self._chunk
        n_fitting = self._beside.n_within(self._room_s(n_whole), depth)
        self._asked = self._whole(n_fitting, max(MAX_GROWTH * self._largest, self._largest + self.grain))
        return self._asked

    def size_within(self, n_targets: float, depth: int) -> int:
        """Return how many tokens a step can compute within n_targets while no job generates."""
        return self._whole(self._alone.n_within(n_targets * self.target_s, depth), self.widest)

    def _whole(self, n_fitting: float, n_most: float) -> int:
        if TILE < n_fitting < 1.5 * TILE:
            n_fitting = TILE
        least = min(MIN_CHUNK, self._chunk) // self.grain * self.grain
        return max(least, int(min(n_fitting, n_most, self.widest)) // self.grain * self.grain)

    def _room_s(self, n_whole: int) -> float:
        """Return the seconds that a prefill step may take between two decode steps."""
        least_gap_s = MAX_GAP * self.target_s
        whole_s = self._beside.seconds_of(n_whole, n_whole / 2)
        wanted_s = min(self._decode_s / (1 - PROMPTS_SHARE), WHOLE_SHARE * whole_s, LONGEST_GAP * self.target_s)
        return max(max(least_gap_s, wanted_s) - self._decode_s, MIN_DECODES * self._decode_s)

    def most_lost(self, n_computed: int, n_lost: int) -> int:
        """Return how many tokens a prompt that has computed and lost this many may lose with the next step."""
        return max(0, self.widest + int(EARNED_SHARE * n_computed) - n_lost)

    def expected_s(self, n_tokens: int, depth: float) -> float:
        """Return the expected seconds of a step while no job generates."""
        return self._alone.seconds_of(n_tokens, depth)

    def decode_took(self, seconds: float) -> None:
        self._decode_s = seconds
        if seconds < self._least_decode_s:
            self._set_base(seconds)

    def _set_base(self, seconds: float) -> None:
        self._least_decode_s = self._beside.base_s = self._alone.base_s = seconds

    def took_beside(self, n_tokens: int, depth: float, seconds: float) -> None:
        """Learn from a prefill step that delayed other jobs. The end of a prompt says little: a few tokens take long
        for their number, because the weights are read in any case.
        """
        if 2 * n_tokens >= self._asked or seconds > MAX_GAP * self.target_s:
            self._beside.took(n_tokens, depth, seconds)
            self._largest = max(n_tokens, self._largest)

    def took_alone(self, n_tokens: int, depth: float, seconds: float) -> None:
        if 2 * n_tokens >= self._chunk:
            self._alone.took(n_tokens, depth, seconds)


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
    """A model of the times of prefill steps, learned from those that ran: the weights are read once, then each token
    adds. A token's attention looks at all cells before it, so that after a long context a token takes several times as
    long as at the start of a prompt.
    """

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
