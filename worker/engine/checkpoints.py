"""The places of checkpoints: positions where a step of a prompt ends, so that the recurrent state there can be copied.

A later prompt can begin at a checkpoint only, so they lie where prompts are likely to part: at the end of the first
message, which is often a system prompt that others have as well; at the end of the last one, behind which a template
may write something else the next time; shortly before a prompt parts from an earlier one; and at multiples of a stride.
"""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.engine.sequence import Sequence
from worker.wire.jobs import TokenId

MIN_APART = 32
"""The least number of tokens between two checkpoints, and before the first: another one costs a step of its own, and a
copy of the state, so computing that many tokens again costs no more."""
NEAR = 64
"""A checkpoint lies at the end of a message if there is one among this many tokens before its place."""
GRAIN = 8
"""Otherwise it lies at a multiple of this number of tokens where prompts part: of three with one beginning two often
have a word more in common."""
LAST = 3
"""It lies this many tokens before the end of a prompt without messages: a longer prompt may cut the last word into
other tokens."""


@dataclass(frozen=True, slots=True)
class Stops:
    """`grain`: all positions are multiples of it. `message_ends`: the tokens that end a message in a prompt."""

    stride: int
    grain: int = 1
    message_ends: Collection[TokenId] = frozenset()
    min_apart: int = MIN_APART

    def of(self, sequence: Sequence, n_alike: int) -> tuple[int, ...]:
        """Return the positions for a sequence that has got the cached part of its prefix. `n_alike` of its first tokens
        are those of another prompt, too.
        """
        start, tokens, end = sequence.n_computed, sequence.tokens, len(sequence.tokens)
        first_end = next((at + 1 for at, token in enumerate(tokens) if token in self.message_ends), end)
        wanted = [self.near(tokens, n_alike), self._near(tokens, end - 1, end - LAST), first_end]
        chosen: list[int] = []
        for at in (*wanted, *range(start // self.stride * self.stride, end, self.stride)):
            stop = at // self.grain * self.grain
            if start + self.min_apart <= stop < end and all(abs(stop - one) >= self.min_apart for one in chosen):
                chosen.append(stop)
        return tuple(sorted(chosen))

    def near(self, tokens: Seq[TokenId], parting: int) -> int:
        """Return the position of the checkpoint for prompts that part at a place among tokens; it is not behind it."""
        return self._near(tokens, parting, parting // GRAIN * GRAIN) // self.grain * self.grain

    def _near(self, tokens: Seq[TokenId], last: int, otherwise: int) -> int:
        """Return the end of a message up to a position, if there is one near it."""
        ends = (at for at in range(last, max(last - NEAR, 0), -1) if tokens[at - 1] in self.message_ends)
        return next(ends, otherwise)
