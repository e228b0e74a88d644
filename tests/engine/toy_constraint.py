"""A constraint that can be checked by eye: what it allows and forces is a checksum of what was said under it."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from zlib import crc32

from worker.engine.channels import ChannelState
from worker.engine.step import Token
from worker.wire.jobs import TokenId

N_VOCAB = 64
LETTERS = b"abcd"
FIRST_FORCED = 4
"""The tokens below may be ends, or not computable."""


def letters_of(token: int) -> bytes:
    """One or two letters; every ninth token is a control token, which has none."""
    return b"" if token % 9 == 0 else LETTERS[token % 4 : token % 4 + 1] * (1 + token % 2)


@dataclass(slots=True)
class ToyConstraint:
    """Half of the tokens may come next, or one must, or the text is over."""

    number: int
    said: list[TokenId] = field(default_factory=list)
    is_closed: bool = False
    place: ChannelState | None = None
    """The place that it was begun in."""

    @property
    def _sum(self) -> int:
        assert not self.is_closed
        return crc32(repr((self.number, self.said)).encode())

    @property
    def is_over(self) -> bool:
        return bool(self.said) and self._sum % 11 == 0

    def forced(self) -> list[TokenId]:
        found = self._sum
        return [] if self.is_over or found % 3 else [TokenId(FIRST_FORCED + found // 3 % (N_VOCAB - FIRST_FORCED))]

    @property
    def unenforced_tools(self) -> tuple[int, ...]:
        return ()

    def begin(self, state: ChannelState) -> None:
        """It says what it says, wherever it begins."""
        self.place = state

    def accept(self, token: TokenId) -> None:
        assert self.n_allowed([token]) == 1, "only what is allowed is drawn"
        self.said.append(token)

    def take_forced(self, n_enough: int) -> list[Token]:
        run: list[Token] = []
        while len(run) < n_enough and (forced := self.forced()):
            self.said += forced
            run += [Token(token, letters_of(token)) for token in forced]
        return run

    def n_allowed(self, tokens: Seq[TokenId]) -> int:
        n_before, n = len(self.said), 0
        for token in tokens:
            if self.is_over or self.forced() not in ([], [token]) or (self._sum >> token % 8) % 2:
                break
            self.said.append(token)
            n += 1
        self.take_back(n)
        assert len(self.said) == n_before
        return n

    def take_back(self, n_tokens: int) -> None:
        del self.said[len(self.said) - n_tokens :]

    def close(self) -> None:
        self.is_closed = True
