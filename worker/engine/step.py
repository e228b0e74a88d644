"""A step and its parts, as the engine and a backend know them: what a sequence wants computed, and what was drawn."""

from collections.abc import Sequence as Seq
from typing import NewType, Protocol

import msgspec

from worker.engine.channels import ChannelState
from worker.wire.jobs import Logprob, SamplingParams, SlotId, StepKind, TokenId

MAX_TOPS = 20
"""The number of most probable tokens in each score, however many the job wants, because later jobs may want more."""


class Token(msgspec.Struct, frozen=True):
    """A token and its raw bytes."""

    id: TokenId
    piece: bytes


class Constraint(Protocol):
    """A grammar at one point of one job's text. The runner knows what else it can do."""

    def begin(self, state: ChannelState) -> None:
        """Begin the text in a state. This is called once, before the first token."""

    def accept(self, token: TokenId) -> None:
        """Advance by a token that was drawn under this constraint and does not end the job."""

    def take_forced(self, n_enough: int) -> Seq[Token]:
        """Advance by the tokens that must come next, and return them; none if there is a choice, or an end. The search
        stops at `n_enough` tokens or a few more, because there may be no last one.
        """

    @property
    def is_over(self) -> bool:
        """Return True if only an end may follow."""

    @property
    def unenforced_tools(self) -> tuple[int, ...]:
        """The places of tools whose schemas it cannot enforce."""

    def n_allowed(self, tokens: Seq[TokenId]) -> int:
        """Return how many of the tokens, from the first on, the constraint allows."""

    def close(self) -> None:
        """Free what it holds. Idempotent."""


Score = NewType("Score", bytes)
"""The log-probability of a prompt's token and of the most probable tokens there, in the form that `Runner.logprob`
reads."""


class Scoring(msgspec.Struct, frozen=True):
    """A request for the log-probabilities of a slice."""

    targets: Seq[TokenId]
    """The tokens after each of the slice's: as many as the slice has, or one less if it ends the prompt."""
    scores: list[Score]
    """The sequence's own scores, by position; the step replaces those after the slice's first token."""


class Slice(msgspec.Struct, frozen=True):
    """A slot's part of a step: `tokens` go to positions [start, start + len(tokens)).

    `sampling` is set if a token is to be drawn after the last of them. Then `generated` is the job's tokens so far,
    which the sequence owns and the step only reads, and `constraint` filters the draw. The last `n_drafts` tokens are a
    draft: a token is drawn after the one before them, and after each of them for as long as the draws agree with the
    draft. `forced` is set if the next token does not depend on the logits and only its log-probability is wanted.
    `scoring` is set if log-probabilities of the prompt are wanted; the slice has no drafts then. `watches_names` asks
    for the log-probability of each token of a tool's name in JSON.
    """

    slot: SlotId
    start: int
    tokens: Seq[TokenId]
    sampling: SamplingParams | None = None
    generated: Seq[TokenId] = ()
    constraint: Constraint | None = None
    n_drafts: int = 0
    forced: Token | None = None
    scoring: Scoring | None = None
    watches_names: bool = False

    @property
    def n_rows(self) -> int:
        """The number of rows of logits that it needs, of its last tokens. If it scores, it needs all rows, even one
        that is not read: a row may be computed differently with another number of rows, and that number must depend on
        the prompt alone.
        """
        if self.scoring is not None:
            return len(self.tokens)
        return 0 if self.sampling is None else self.n_drafts + 1


class Step(msgspec.Struct, frozen=True):
    """One decode call, or several if it is larger than a batch. Either all slices are prefill or all are decode, so
    that shapes are stable."""

    kind: StepKind
    slices: tuple[Slice, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(slice_.tokens) for slice_ in self.slices)

    @property
    def depth(self) -> float:
        """The average number of cells before a token in its own slot."""
        looks = sum(len(slice_.tokens) * (slice_.start + len(slice_.tokens) / 2) for slice_ in self.slices)
        return looks / self.n_tokens


class Sampled(msgspec.Struct, frozen=True):
    """A draw of a slot: the token, its raw bytes (none for control tokens), and whether it ends generation."""

    slot: SlotId
    token: TokenId
    piece: bytes
    is_end: bool
    error: str | None = None
    """The reason if nothing could be drawn because the logits are not numbers; the token means nothing then."""
    logprob: Logprob | None = None


class StepFailed(Exception):
    """The base of all reasons why a step did not happen."""


class NoRoom(StepFailed):
    """llama_decode 1: no cells for the batch."""


class Aborted(StepFailed):
    """llama_decode 2: stopped by request_abort."""


class BadBatch(StepFailed):
    """llama_decode -1: some slice is invalid."""


class _SaltedToken(int):
    """The first token of a salted prompt: an id, and a salt. It is written and computed as the id alone.

    It differs from the same token without the salt or with another one, so no comparison of two texts from their
    beginnings finds anything that clients of different salts have in common. What packs tokens into bytes loses the
    salt, and asks `salt_of` first.
    """

    salt: bytes

    def __new__(cls, token: TokenId, salt: bytes) -> "_SaltedToken":
        made = super().__new__(cls, token)
        made.salt = salt
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SaltedToken) and self.salt == other.salt and int(self) == int(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def salted(prompt: list[TokenId], salt: bytes) -> list[TokenId]:
    """Return a prompt, which is not empty, that shares nothing with prompts of another salt; without one as it is."""
    return [TokenId(_SaltedToken(prompt[0], salt)), *prompt[1:]] if salt else prompt


def salt_of(tokens: Seq[TokenId]) -> bytes:
    """Return the salt of a text from its beginning on; nothing if it has none."""
    return tokens[0].salt if tokens and isinstance(tokens[0], _SaltedToken) else b""
