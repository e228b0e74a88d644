"""All open connections, and the choice of the one to close when there are too many (docs/protocol.md#http).

Owns: the number of connections, the standing of each, and the order in which they are closed. This is the state that
all connections of a uvicorn server share.
"""

from collections import Counter
from enum import Enum, auto
from typing import Protocol

from uvicorn.server import ServerState

MAX_CONNECTIONS = 1024
RESERVED_CONNECTIONS = 16
"""Jobs cannot use these connections: they are reserved for health, cancel and metrics."""

OTHER_OPEN_FILES = 64
"""The descriptors for the listener, the loop, the engine's pipes, the log and calls to the pool manager."""


def affordable_connections(n_open_files: int) -> int:
    """The number of connections that the process can hold, at most the protocol's limit.

    libuv drops a connection silently if there is no descriptor for it. `n_open_files` is the process's limit; a number
    below 0 means no limit.
    """
    if n_open_files < 0:
        return MAX_CONNECTIONS
    return max(RESERVED_CONNECTIONS + 1, min(MAX_CONNECTIONS, n_open_files - OTHER_OPEN_FILES))


class Standing(Enum):
    """The state of a connection. States before `SERVED` wait for the client, and are closed for others in this
    order."""

    SILENT = auto()
    """It has no request, or not all of its headers, so the purpose of the connection is unknown."""
    SENDING = auto()
    """It has a request whose body is not complete."""
    NOT_READING = auto()
    """It has an answer that the client does not read, whether or not all of it was handed over."""
    SERVED = auto()
    """It has a whole request without a complete answer. It is never closed for another connection."""


class Member(Protocol):
    """A connection; connection.py and the tests implement it."""

    @property
    def address(self) -> str | None:
        """The client's address; None if the connection ended before the address was read."""
        ...

    def drop(self) -> None:
        """Close at once. `leave` follows later."""
        ...


class Crowd(ServerState):
    """The open connections. Each one calls `join`, then `stand` whenever its state may have changed, then `leave`.

    `max_per_address` 0 means no limit.
    """

    def __init__(self, max_connections: int, max_per_address: int = 0) -> None:
        super().__init__()
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._standing: dict[Member, Standing] = {}
        self._by_standing: dict[Standing, dict[Member, None]] = {standing: {} for standing in Standing}
        """The members of each standing, longest first."""
        self._n_by_address: Counter[str] = Counter()

    @property
    def n_members(self) -> int:
        return len(self._standing)

    def join(self, member: Member) -> None:
        """Add a connection. If there are too many, close the least useful one, in the worst case the new one."""
        self._put(member, Standing.SILENT)
        if member.address is not None:
            self._n_by_address[member.address] += 1
            if 0 < self._max_per_address < self._n_by_address[member.address]:
                self._drop_silent(member.address, besides=member)
        if self.n_members > self._max_connections:
            self._make_room(besides=member)

    def leave(self, member: Member) -> None:
        """Remove a closed connection. Idempotent, because a dropped connection was removed earlier."""
        if (standing := self._standing.pop(member, None)) is None:
            return
        del self._by_standing[standing][member]
        if member.address is not None:
            self._n_by_address[member.address] -= 1
            if not self._n_by_address[member.address]:
                del self._n_by_address[member.address]

    def stand(self, member: Member, standing: Standing) -> None:
        """Set a member's standing. If it is unchanged, the member keeps its place in the order."""
        if self._standing.get(member, standing) is not standing:
            del self._by_standing[self._standing[member]][member]
            self._put(member, standing)

    @property
    def is_full(self) -> bool:
        """True if a job whose request has arrived uses a connection reserved for health, cancel and metrics."""
        n_answering = len(self._by_standing[Standing.SERVED]) + len(self._by_standing[Standing.NOT_READING])
        return n_answering > self._max_connections - RESERVED_CONNECTIONS

    def is_over_limit(self, member: Member) -> bool:
        """True if its address has requests on more connections than one address may have, including this one."""
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

        The new connection stays if all others have requests, because it may only ask for health.
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
