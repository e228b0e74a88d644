"""The requests of a load and their answers, with the time of each token, independent of any server's format.

Pure data and what follows from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, and when it is sent. Every answer has exactly `n_tokens` tokens: the end of text is ignored."""

    prompt: str
    n_tokens: int
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    phase: int = 0
    """A phase begins when all requests of the one before have ended."""
    is_late: bool = False
    """Sent when every other request of its phase has received some tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Times are of one clock, in seconds."""

    sent_s: float
    arrivals_s: tuple[float, ...] = ()
    """The arrival of each token event; a token without text has none."""
    ended_s: float = 0.0
    n_tokens: int = 0
    """Sampled, as the server counts them."""
    n_prompt: int = 0
    """Tokens of the prompt, as the server counts them; 0 where it says nothing of them."""
    n_cached: int = 0
    """Those of them that it did not compute, because it had computed them before."""
    error: str = ""
    """The reason why it is no answer; empty for a good one."""

    @property
    def ttft_s(self) -> float:
        """The time from sending to the first token."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """The times between consecutive token events."""
        return [after - before for before, after in pairwise(self.arrivals_s)]

    @property
    def tokens_per_s(self) -> float:
        """The rate of the tokens after the first."""
        return per_s(self.n_tokens - 1, self.ended_s - self.arrivals_s[0])


def per_s(count: float, seconds: float) -> float:
    """0 for no time at all."""
    return count / seconds if seconds > 0 else 0.0


def whole_s(answers: Sequence[Answer]) -> float:
    """The time from the first request to the last token."""
    return max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)


def whole_rate(answers: Sequence[Answer]) -> float:
    """All tokens by that time."""
    return per_s(sum(answer.n_tokens for answer in answers), whole_s(answers))


def percentile(values: Iterable[float], percent: int) -> float:
    """1 to 99; linear between the two nearest values. 0 of nothing."""
    all_of_them = list(values)
    if len(all_of_them) < 2:
        return sum(all_of_them)
    return quantiles(all_of_them, n=100, method="inclusive")[percent - 1]


def gaps_of(answers: Iterable[Answer]) -> list[float]:
    """All of them, in no order that matters."""
    return [gap for answer in answers for gap in answer.gaps_s]
