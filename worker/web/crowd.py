"""All open connections, and which of them is closed when there are too many (docs/protocol.md 3).

Owns: how many there are, whom each one waits for, and the order in which they make room. Refuses to know: HTTP, sockets
and time. All connections of a uvicorn server share its state, and this is that state. Runs on the front's event loop.
"""

from collections import Counter
from enum import Enum, auto
from typing import Protocol

from uvicorn.server import ServerState

MAX_CONNECTIONS = 1024
RESERVED_CONNECTIONS = 16
"""Kept for health, cancel and metrics: jobs may hold all connections but these."""

OTHER_OPEN_FILES = 64
"""Descriptors for the listener, the loop, the engine's pipes, the log and calls to the pool manager."""


def affordable_connections(n_open_files: int) -> int:
    """As many connections as the protocol has, or fewer: libuv drops one without a word if it has no descriptor for it.

    `n_open_files` is the process's limit; below 0 there is none.
    """
    if n_open_files < 0:
        return MAX_CONNECTIONS
    return max(RESERVED_CONNECTIONS + 1, min(MAX_CONNECTIONS, n_open_files - OTHER_OPEN_FILES))


class Standing(Enum):
    """What a connection waits for. Those before `SERVED` wait for their client and make room in this order."""

    SILENT = auto()
    """It has no request, or not all of its headers, so that nobody knows what it will ask for."""
    SENDING = auto()
    """It has a request whose body is not complete."""
    NOT_READING = auto()
    """It has an answer that the client does not take, so that its next byte waits."""
    SERVED = auto()
    """It has a whole request, to which the worker owes the answer. It is never given up for another connection."""


class Member(Protocol):
    """A connection: connection.py's, and the tests'."""

    @property
    def address(self) -> str | None:
        """The client's address; None if the connection has ended before it was asked."""
        ...

    def drop(self) -> None:
        """Close at once. `leave` is called sooner or later."""
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
        """The members of each standing; the one that has had it for the longest time comes first."""
        self._n_by_address: Counter[str] = Counter()

    @property
    def n_members(self) -> int:
        return len(self._standing)

    def join(self, member: Member) -> None:
        """There is one connection more. The one that is least worth keeping is closed, at worst the new one."""
        self._put(member, Standing.SILENT)
        if member.address is not None:
            self._n_by_address[member.address] += 1
            if 0 < self._max_per_address < self._n_by_address[member.address]:
                self._drop_silent(member.address, besides=member)
        if self.n_members > self._max_connections:
            self._make_room(besides=member)

    def leave(self, member: Member) -> None:
        """A connection is closed. Idempotent, because one that was dropped has already been taken off."""
        if (standing := self._standing.pop(member, None)) is None:
            return
        del self._by_standing[standing][member]
        if member.address is not None:
            self._n_by_address[member.address] -= 1
            if not self._n_by_address[member.address]:
                del self._n_by_address[member.address]

    def stand(self, member: Member, standing: Standing) -> None:
        """A member's standing may have changed. If it has not, its place among those of that standing stays."""
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
        """Close a silent connection of the address.

        The newcomer stays when all others have requests, because nobody knows yet whether it asks for more than health.
        """
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
