"""All open connections: who among them has to go when room runs out (docs/protocol.md 3).

Owns: how many there are, at whom each one waits, and the order in which they make room. Refuses to know: HTTP, sockets
and time. uvicorn's connections hold their server's state in common, so this is one. Runs on the front's event loop.
"""

from collections import Counter
from enum import Enum, auto
from typing import Protocol

from uvicorn.server import ServerState

MAX_CONNECTIONS = 1024
RESERVED_CONNECTIONS = 16
"""Kept for health, cancel and metrics: jobs may hold all connections but these."""

OTHER_OPEN_FILES = 64
"""The listener, the loop, the engine's pipes, the log, calls to the pool manager."""


def affordable_connections(n_open_files: int) -> int:
    """As many as the protocol has, or fewer: what there is no descriptor for libuv drops without a word.

    `n_open_files`: the process's limit; below 0 there is none.
    """
    if n_open_files < 0:
        return MAX_CONNECTIONS
    return max(RESERVED_CONNECTIONS + 1, min(MAX_CONNECTIONS, n_open_files - OTHER_OPEN_FILES))


class Standing(Enum):
    """What a connection waits for. Those before `SERVED` wait for their client and make room in this order."""

    SILENT = auto()
    """No request, or not all of its headers: nobody knows what it will ask for."""
    SENDING = auto()
    """A request whose body is not all there."""
    NOT_READING = auto()
    """An answer that the client does not take, and so the next byte of it waits."""
    SERVED = auto()
    """A whole request to which the worker owes the answer. Never given up for another connection."""


class Member(Protocol):
    """connection.py's, and the tests'."""

    @property
    def address(self) -> str | None:
        """The client's; None where there is none, as on a Unix socket."""
        ...

    def drop(self) -> None:
        """Close at once. The loss is reported to `leave`, sooner or later."""
        ...


class Crowd(ServerState):
    """Each connection calls `join`, `stand` whenever something may have changed, and `leave`.

    `max_per_address` 0 means any number.
    """

    def __init__(self, max_connections: int, max_per_address: int = 0) -> None:
        super().__init__()
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._standing: dict[Member, Standing] = {}
        self._by_standing: dict[Standing, dict[Member, None]] = {standing: {} for standing in Standing}
        """The one that has stood so for the longest time first."""
        self._n_by_address: Counter[str] = Counter()

    @property
    def n_members(self) -> int:
        return len(self._standing)

    def join(self, member: Member) -> None:
        """A connection more; the one that is least worth keeping goes, at worst the new one."""
        self._put(member, Standing.SILENT)
        if member.address is not None:
            self._n_by_address[member.address] += 1
            if 0 < self._max_per_address < self._n_by_address[member.address]:
                self._drop_silent(member.address, besides=member)
        if self.n_members > self._max_connections:
            self._make_room(besides=member)

    def leave(self, member: Member) -> None:
        """Idempotent: one that was dropped has already been taken off."""
        if (standing := self._standing.pop(member, None)) is None:
            return
        del self._by_standing[standing][member]
        if member.address is not None:
            self._n_by_address[member.address] -= 1
            if not self._n_by_address[member.address]:
                del self._n_by_address[member.address]

    def stand(self, member: Member, standing: Standing) -> None:
        """Its place among those who stand alike stays, unless it stood otherwise before."""
        if self._standing.get(member, standing) is not standing:
            del self._by_standing[self._standing[member]][member]
            self._put(member, standing)

    @property
    def is_full(self) -> bool:
        """Whether a job whose request has arrived takes what is kept for health, cancel and metrics."""
        n_answering = len(self._by_standing[Standing.SERVED]) + len(self._by_standing[Standing.NOT_READING])
        return n_answering > self._max_connections - RESERVED_CONNECTIONS

    def is_over_limit(self, member: Member) -> bool:
        """Whether its address has requests on more connections than one address may, this one among them."""
        if not self._max_per_address or member.address is None:
            return False
        silent = self._by_standing[Standing.SILENT]
        n_silent = sum(other.address == member.address for other in silent)
        return self._n_by_address[member.address] - n_silent > self._max_per_address

    def _put(self, member: Member, standing: Standing) -> None:
        self._standing[member] = standing
        self._by_standing[standing][member] = None

    def _drop_silent(self, address: str, *, besides: Member) -> None:
        """The newcomer stays when all others have requests: nobody knows yet whether it asks for more than health."""
        for member in self._by_standing[Standing.SILENT]:
            if member is not besides and member.address == address:
                self._drop(member)
                return

    def _make_room(self, *, besides: Member) -> None:
        for standing in (Standing.SILENT, Standing.SENDING, Standing.NOT_READING):
            for member in self._by_standing[standing]:
                if member is not besides:
                    self._drop(member)
                    return
        self._drop(besides)

    def _drop(self, member: Member) -> None:
        self.leave(member)
        member.drop()
