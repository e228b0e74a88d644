"""The places of checkpoints: positions where a step of a prompt ends, so that the recurrent state there can be copied.

A later prompt can begin at a checkpoint only, so they lie where prompts are likely to part: at the end of the first
message, which is often a system prompt that others have as well; at the end of the last one, behind which a template
may write something else the next time; where a prompt has parted from an earlier one; and at multiples of a stride.
Without messages one lies shortly before the prompt's end. Pure: positions only.
"""

from collections.abc import Collection
from dataclasses import dataclass

from worker.engine.sequence import Sequence
from worker.wire.jobs import TokenId

MIN_APART = 32
"""The least number of tokens between two checkpoints, and before the first: another one costs a step of its own, and a
copy of the state, so computing that many tokens again costs no more."""

NEAR_END = 64
"""If no message ends among this many tokens before the prompt's end, a checkpoint lies near that."""

GRAIN = 8
"""It lies at a multiple of this number of tokens."""


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
        start, end = sequence.n_computed, len(sequence.tokens)
        ends = [at + 1 for at, token in enumerate(sequence.prompt) if token in self.message_ends and at + 1 < end]
        near_end = ends[-1] if ends and end - ends[-1] <= NEAR_END else (end - 1) // GRAIN * GRAIN
        wanted = [n_alike, near_end, *ends[:1], *range(start // self.stride * self.stride, end, self.stride)]
        chosen: list[int] = []
        for stop in (at // self.grain * self.grain for at in wanted):
            if start + self.min_apart <= stop < end and all(abs(stop - at) >= self.min_apart for at in chosen):
                chosen.append(stop)
        return tuple(sorted(chosen))
