"""The requests of a load and their answers, independent of any server's format; the numbers of a round, their bounds.

Pure: answers to numbers, numbers to verdicts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import Literal

from worker.errors import WorkerError

Unit = Literal["tokens/s", "tokens", "ms", "×"]


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
    def tokens_per_s(self) -> float:
        """The rate of the tokens after the first."""
        return per_s(self.n_tokens - 1, self.ended_s - self.arrivals_s[0])


def per_s(count: float, seconds: float) -> float:
    """0 for no time at all."""
    return count / seconds if seconds > 0 else 0.0


def whole_rate(answers: Sequence[Answer]) -> float:
    """All tokens by the time from the first request to the last token."""
    whole_s = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
    return per_s(sum(answer.n_tokens for answer in answers), whole_s)


def percentile(values: Iterable[float], percent: int) -> float:
    """1 to 99; linear between the two nearest values. 0 of nothing."""
    all_of_them = list(values)
    if len(all_of_them) < 2:
        return sum(all_of_them)
    return quantiles(all_of_them, n=100, method="inclusive")[percent - 1]


def gaps_of(answers: Iterable[Answer]) -> list[float]:
    """The times between consecutive token events, in no order that matters."""
    return [after - before for answer in answers for before, after in pairwise(answer.arrivals_s)]


Answers = Sequence[Answer]


class BoundMissed(WorkerError):
    """A measured figure is over its bound, or requests failed: one line that says which, exit 1."""


def check(bad_news: Iterable[str]) -> None:
    """Raises: BoundMissed with all of it, unless there is none."""
    if line := "; ".join(bad_news):
        raise BoundMissed(line)


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on a median."""

    sense: Literal["at least", "at most"]
    limit: float
    of: Literal["ratio", "value"] = "ratio"
    """The ratio of our number to theirs, round by round; or our own number."""
    or_value: float | None = None
    """It holds, too, if our own number is not beyond this one, whatever theirs is."""

    def holds(self, value: float) -> bool:
        return self._is_within(value, self.limit)

    def holds_alone(self, value: float) -> bool:
        """True if our own number is enough."""
        return self.or_value is not None and self._is_within(value, self.or_value)

    def _is_within(self, value: float, limit: float) -> bool:
        return value >= limit if self.sense == "at least" else value <= limit

    def __str__(self) -> str:
        sign = "≥" if self.sense == "at least" else "≤"
        return f"{sign} {self.limit:g}" + ("" if self.or_value is None else f" or {sign} {self.or_value:g} alone")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a round. `of` is given the answers in the order of the requests, none of them failed."""

    name: str
    unit: Unit
    of: Callable[[Answers], float]
    bound: Bound | None = None
    """The bound; None for a number that is reported but not judged."""
    speculating_bound: Bound | None = None
    """The bound against a peer that also speculates."""


def at_least(limit: float) -> Bound:
    """A share of theirs."""
    return Bound("at least", limit)


def at_most(limit: float, *, or_value: float | None = None) -> Bound:
    return Bound("at most", limit, or_value=or_value)


def stream_rate(bound: Bound | None = None, speculating_bound: Bound | None = None) -> Measure:
    """Tokens after the first by the time they took, the median of the streams."""
    of = lambda answers: median(one.tokens_per_s for one in answers)  # noqa: E731
    return Measure("decode", "tokens/s", of, bound, speculating_bound)


def total_rate(bound: Bound | None = None, speculating_bound: Bound | None = None) -> Measure:
    """All tokens by the time from the first request to the last token."""
    return Measure("all tokens", "tokens/s", whole_rate, bound, speculating_bound)


def first_token(bound: Bound | None = None) -> Measure:
    """The median time from sending a request to its first token."""
    return Measure("first token", "ms", lambda answers: 1000 * median(one.ttft_s for one in answers), bound)


def last_first_token(bound: Bound) -> Measure:
    """The last request's."""
    return Measure("first token of the last", "ms", lambda answers: 1000 * answers[-1].ttft_s, bound)


def longest_gap_beside_the_last(bound: Bound) -> Measure:
    return Measure("longest gap of a stream", "ms", lambda answers: 1000 * _longest_gap_beside_the_last(answers), bound)


def gap_at_ends(bound: Bound) -> Measure:
    return Measure("delay at an end", "ms", lambda answers: 1000 * _delay_at_ends(answers), bound)


def computed(bound: Bound) -> Measure:
    """Tokens of all prompts but the last that were computed. The last prompt is the prefix of all conversations."""
    return Measure("prompt tokens computed", "tokens", lambda answers: float(_computed(answers)), bound)


def computed_by_new(bound: Bound, *, n_conversations: int) -> Measure:
    """The same as a multiple of the new ones. New is what no prompt before had: the last prompt once, and of each
    conversation what it adds to that."""

    def of(answers: Answers) -> float:
        *turns, common = answers
        n_new = sum(turn.n_prompt for turn in turns[-n_conversations:]) - (n_conversations - 1) * common.n_prompt
        return per_s(_computed(answers), n_new)

    return Measure("computed by new", "×", of, bound)


USUAL: tuple[Measure, ...] = (
    total_rate(),
    first_token(),
    Measure("first token p99", "ms", lambda answers: 1000 * percentile([a.ttft_s for a in answers], 99)),
    Measure("between tokens", "ms", lambda answers: 1000 * percentile(gaps_of(answers), 50)),
    Measure("between tokens p99", "ms", lambda answers: 1000 * percentile(gaps_of(answers), 99)),
    Measure("between tokens, longest", "ms", lambda answers: 1000 * max(gaps_of(answers), default=0.0)),
)
"""The measures that every scenario reports after its own, unless one of its own has the name."""


def _computed(answers: Answers) -> int:
    return sum(turn.n_prompt - turn.n_cached for turn in answers[:-1])


def _longest_gap_beside_the_last(answers: Answers) -> float:
    """The longest gap of streams that had begun, after the last request was sent."""
    *streams, late = answers
    gaps = [
        after - before for stream in streams for before, after in pairwise(stream.arrivals_s) if after > late.sent_s
    ]
    return max(gaps, default=0.0)


def _delay_at_ends(answers: Answers) -> float:
    """The longest that streams waited beyond an ordinary token when another one ended: of the gaps that the end lies in
    and those after them, as the last token of one comes with a token of all.
    """
    ordinary_s = percentile(gaps_of(answers), 50)
    longest_s = ordinary_s
    for ended in answers:
        for other in answers:
            gaps = [(after, after - before) for before, after in pairwise(other.arrivals_s) if after > ended.ended_s]
            if other.ended_s > ended.ended_s > other.arrivals_s[0]:
                longest_s = max([longest_s, *(gap_s for _, gap_s in gaps[:2])])
    return longest_s - ordinary_s
