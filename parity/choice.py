"""The choice among measured pairs of file type and cache type, under a limit of memory. Pure."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from parity.estimates import Estimate


class Option(Protocol):
    """A pair that was measured."""

    @property
    def memory_bytes(self) -> int: ...

    @property
    def kl(self) -> Estimate: ...

    @property
    def tokens_per_s(self) -> float: ...


_Option = TypeVar("_Option", bound=Option)


def choose(options: Sequence[_Option], limit_bytes: int) -> _Option | None:
    """The option within the limit that is closest to the reference. If several are equally close, because none is
    surely closer than they are, it is the fastest of these. None if no option is within the limit."""
    within = [option for option in options if option.memory_bytes <= limit_bytes]
    if not within:
        return None
    surely = min(option.kl.high for option in within)
    as_close = [option for option in within if option.kl.low <= surely]
    return max(as_close, key=lambda option: option.tokens_per_s)


def frontier(options: Sequence[_Option]) -> list[_Option]:
    """The pairs that no other pair beats in memory or closeness without being worse in the other."""

    def is_beaten(option: _Option) -> bool:
        mine = (option.memory_bytes, option.kl.value)
        others = ((other.memory_bytes, other.kl.value) for other in options)
        return any(memory <= mine[0] and kl <= mine[1] and (memory, kl) != mine for memory, kl in others)

    return [option for option in options if not is_beaten(option)]
