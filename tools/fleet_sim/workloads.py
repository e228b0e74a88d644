"""The workload of a fleet: sessions of requests, each sent after the answer to the one before.

Texts are tokens by chance, so that two of them have a beginning in common only where the workload says so. An answer is
one token again and again (`Ask.sampling`). Pure; all chance is the seed's.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log

from worker.wire.jobs import SamplingParams, TokenId

BIAS = 100.0
"""The largest bias that OpenAI's API accepts: no other token is drawn."""

VOCABULARY = tuple(TokenId(token) for token in range(1_000, 30_000))
"""Every common model has more tokens than that, and its special ones elsewhere."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, as a router and a worker see it."""

    session: int
    prompt: Sequence[TokenId]
    answer: TokenId  # all of its `n_tokens` tokens
    n_tokens: int

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(seed=0, temperature=0.0, logit_bias={str(self.answer): BIAS}, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, or a single request. `asks`: each request, with the pause after the previous answer."""

    number: int
    begins_s: float
    asks: Sequence[tuple[float, Ask]]

    @property
    def n_longest(self) -> int:
        """The number of tokens of its last request and answer."""
        _, last = self.asks[-1]
        return len(last.prompt) + last.n_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a workload, in tokens. Of a range each doubling is drawn as often (log-uniform)."""

    n_openings: int
    """The number of texts that the first prompts begin with. The second is half as popular as the first, the third a
    third."""
    n_opening_tokens: int
    turns: Range
    text: Range
    answer: Range
    mean_pause_s: float

    def sessions(self, *, seed: int, n_requests: int, rate: float) -> list[Session]:
        """`rate`: how many requests a second are sent, in the long run; sessions begin by chance, without memory."""
        chance = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
        openings = [chance.choices(VOCABULARY, k=self.n_opening_tokens) for _ in range(self.n_openings)]
        popularity = list(accumulate(1 / place for place in range(1, self.n_openings + 1)))
        session_rate = rate / (sum(self.turns) / 2)
        sessions: list[Session] = []
        begins_s, n_left = 0.0, n_requests
        while n_left:
            begins_s += chance.expovariate(session_rate)
            n_turns = min(n_left, chance.randint(*self.turns))
            n_left -= n_turns
            (opening,) = chance.choices(openings, cum_weights=popularity)
            asks = list(self._asks(chance, len(sessions), opening, n_turns))
            sessions.append(Session(len(sessions), begins_s, asks))
        return sessions

    def _asks(
        self, chance: random.Random, session: int, opening: list[TokenId], n_turns: int
    ) -> Iterator[tuple[float, Ask]]:
        """Each prompt has all that was said before in it."""
        said = list(opening)
        for place in range(n_turns):
            pause_s = 0.0 if place == 0 else chance.expovariate(1 / self.mean_pause_s)
            said += chance.choices(VOCABULARY, k=_drawn(chance, self.text))
            ask = Ask(session, tuple(said), chance.choice(VOCABULARY), _drawn(chance, self.answer))
            yield pause_s, ask
            said += [ask.answer] * ask.n_tokens


def _drawn(chance: random.Random, between: Range) -> int:
    low, high = between
    return round(exp(chance.uniform(log(low), log(high))))


WORKLOADS = {
    "conversations": Shape(
        n_openings=20, n_opening_tokens=200, turns=(1, 8), text=(16, 200), answer=(16, 256), mean_pause_s=20.0
    ),
    "shared-prompts": Shape(
        n_openings=50, n_opening_tokens=1_000, turns=(1, 1), text=(16, 100), answer=(16, 128), mean_pause_s=1.0
    ),
}
"""Chats with a system prompt, whose users read and think before they go on; and single requests after long
instructions."""
