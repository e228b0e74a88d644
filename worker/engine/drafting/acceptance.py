"""Drafts, how often those of one source were right, and how much time they have cost a job.

A token is the same whether there was a draft or not, so every draw judges the draft tokens that any source proposed for
it, even those that the step did not take.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

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
    n_asked: int = 0
    """The number of tokens that a draft model was asked for; it ends before one that it is not sure of."""


NO_DRAFT = Draft()


@dataclass(slots=True, eq=False)
class Account:
    """The seconds that drafting has cost one job, by the cost model. `Speculation.plan` keeps it."""

    lost_s: float = 0.0
    """The lost seconds, less those that are forgiven. The next plan forgets any gain beyond that."""
    token_s: float = 0.0
    """The seconds of a token in the last plan without drafts."""
    has_paid: bool = False
    """True if time was spent to make drafts for the planned step. Only the time that these win may be spent again."""

    def pay(self, seconds: float) -> None:
        """Spend time on making drafts for the next step."""
        self.lost_s += seconds
        self.has_paid = True

    def won(self, n_tokens: int) -> None:
        """Count n_tokens draft tokens of the planned step as right."""
        self.lost_s -= n_tokens * self.token_s
        if not self.has_paid:
            self.lost_s = max(0.0, self.lost_s)
        self.has_paid = False


@dataclass(slots=True, eq=False)
class Acceptance:
    """The share of the drafts of one source that were right."""

    _right: list[float] = field(default_factory=lambda: [2.0**i for i in range(N_CLASSES)])
    """The number of draft tokens that were right, by class of match. A match of m tokens begins as if m had been right
    and one wrong."""
    _wrong: list[float] = field(default_factory=lambda: [1.0] * N_CLASSES)

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

    def take_after(self, other: "Acceptance", share: float) -> None:
        """Let observations count a `share` less, and those of another one instead of them."""
        self._right = [(1 - share) * a + share * b for a, b in zip(self._right, other._right, strict=True)]
        self._wrong = [(1 - share) * a + share * b for a, b in zip(self._wrong, other._wrong, strict=True)]


def _class(n_matched: int) -> int:
    return min(max(1, n_matched).bit_length(), N_CLASSES) - 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft for a decoding sequence, which may be empty."""

    account: Account
    """The account of the sequence."""
    acceptance: Acceptance
    """The acceptance of such drafts; every draw teaches it."""
    draft: Draft


class Lookup(Protocol):
    """Drafts for one job that are looked up in a text, which takes next to no time."""

    acceptance: Acceptance

    def propose(self, n_most: int) -> Draft:
        """Return a draft of the job's next tokens, up to n_most; `NO_DRAFT` if there is none."""
        ...

    def catch_up(self, n_most: int) -> int:  # noqa: ARG002 - most have nothing to do ahead of a draft
        """Index at most n_most of the current tokens ahead of the next draft. Return how many were indexed."""
        return 0
