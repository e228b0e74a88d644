"""Drafts, how often those of one source were right, and how much time they have cost a job.

This module knows neither the model, nor the sources of drafts, nor how many draft tokens pay (speculation.py). It is
pure and runs on the step thread.

A token is the same whether there was a draft or not, so every draw judges the draft tokens that any source proposed for
it, even those that the step did not take.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Self

from worker.wire.jobs import TokenId

N_CLASSES = 5
"""The number of classes of matches: up to 1, 2-3, 4-7, 8-15 and more tokens. A long match is right far more often."""
HALF_LIFE = 16
"""The number of draws after which an observation counts half. Values from 8 to 64 make no difference on edits, quotes
and lists."""

_DECAY = 0.5 ** (1 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for a job, the next one first."""

    tokens: tuple[TokenId, ...] = ()
    n_matched: int = 0
    """The least number of the job's last tokens that also stand before the place that the draft was read from. It is
    less if one of them differs from that place (`TRUST_BEHIND_A_CHANGE` in ngram.py)."""


NO_DRAFT = Draft()


@dataclass(slots=True, eq=False)
class Account:
    """The seconds that drafting has cost one job, by the cost model. `Speculation.plan` keeps it."""

    lost_s: float = 0.0
    """The lost seconds, less those that are forgiven. The next plan forgets any gain beyond that."""
    token_s: float = 0.0
    """The seconds of a token in the last plan without drafts."""

    def won(self, n_tokens: int) -> None:
        """Count n_tokens draft tokens of the planned step as right."""
        self.lost_s -= n_tokens * self.token_s


@dataclass(slots=True, eq=False)
class Acceptance:
    """The share of the drafts of one source that were right."""

    _right: list[float] = field(default_factory=lambda: [2.0**i for i in range(N_CLASSES)])
    """The number of draft tokens that were right, by class of match. A match of m tokens begins as if m had been right
    and one wrong."""
    _wrong: list[float] = field(default_factory=lambda: [1.0] * N_CLASSES)

    @classmethod
    def believing(cls, n_right: float) -> Self:
        """Make one that begins as if n_right draft tokens of each class had been right and one wrong."""
        return cls([n_right] * N_CLASSES, [1.0] * N_CLASSES)

    def copy(self) -> Self:
        return type(self)(list(self._right), list(self._wrong))

    def fade(self, half_life: int, beginning: Self) -> None:
        """Go back a little to the beginning: after `half_life` calls, an observation counts half."""
        kept = 0.5 ** (1 / half_life)
        self._right = [kept * a + (1 - kept) * b for a, b in zip(self._right, beginning._right, strict=True)]
        self._wrong = [kept * a + (1 - kept) * b for a, b in zip(self._wrong, beginning._wrong, strict=True)]

    def rate(self, n_matched: int) -> float:
        """Return the chance, in [0, 1], that the next draft token is right after a match of n_matched ≥ 0 tokens."""
        i = _class(n_matched)
        return self._right[i] / (self._right[i] + self._wrong[i])

    def saw(self, draft: Draft, drawn: Seq[TokenId]) -> None:
        """Learn from a step, given the whole draft, taken or not, and the drawn tokens. Tokens after a wrong one teach
        nothing.
        """
        for n_matched, (expected, token) in enumerate(zip(draft.tokens, drawn, strict=False), draft.n_matched):
            i = _class(n_matched)
            self._right[i] = self._right[i] * _DECAY + (expected == token)
            self._wrong[i] = self._wrong[i] * _DECAY + (expected != token)
            if expected != token:
                break


def _class(n_matched: int) -> int:
    return min(max(1, n_matched).bit_length(), N_CLASSES) - 1
