"""All open connections, and the choice of the one to close when there are too many (docs/protocol.md#http).

Owns: the number of connections, the state of each, and the order in which they are closed. This is the state that
all connections of a uvicorn server share.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from itertools import chain
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


class ConnectionState(Enum):
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


_CLOSED_IN_ORDER = (ConnectionState.SILENT, ConnectionState.SENDING, ConnectionState.NOT_READING)


class Member(Protocol):
    """A connection; connection.py and the tests implement it."""

    @property
    def address(self) -> str | None:
        """The client's address; None if the connection ended before the address was read."""
        ...

    def drop(self) -> None:
        """Close at once. `leave` follows later."""
        ...


class ConnectionLimits(ServerState):
    """The open connections. Each one calls `join`, then `set` whenever its state may have changed, then `leave`.

    `max_per_address` 0 means no limit.
    """

    def __init__(self, max_connections: int, max_per_address: int = 0) -> None:
        super().__init__()
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._states: dict[Member, ConnectionState] = {}
        self._members: dict[ConnectionState, dict[Member, None]] = {state: {} for state in ConnectionState}
        """The members in each state, longest first."""
        self._n_by_address: Counter[str] = Counter()

    @property
    def n_members(self) -> int:
        return len(self._states)

    def join(self, member: Member) -> None:
        """Add a connection. If there are too many, close the least useful one, in the worst case the new one.

        If its address has too many, and all others of them have requests, it stays, because it may only ask for health.
        """
        self._put(member, ConnectionState.SILENT)
        if member.address is not None:
            self._n_by_address[member.address] += 1
            if 0 < self._max_per_address < self._n_by_address[member.address]:
                silent = self._others(member, ConnectionState.SILENT)
                self._drop_first(other for other in silent if other.address == member.address)
        if self.n_members > self._max_connections:
            self._drop_first(chain(self._others(member, *_CLOSED_IN_ORDER), [member]))

    def leave(self, member: Member) -> None:
        """Remove a closed connection. Idempotent, because a dropped connection was removed earlier."""
        if (state := self._states.pop(member, None)) is None:
            return
        del self._members[state][member]
        if member.address is not None:
            self._n_by_address[member.address] -= 1
            if not self._n_by_address[member.address]:
                del self._n_by_address[member.address]

    def set(self, member: Member, state: ConnectionState) -> None:
        """Set a member's state. If it is unchanged, the member keeps its place in the order."""
        if self._states.get(member, state) is not state:
            del self._members[self._states[member]][member]
            self._put(member, state)

    @property
    def is_full(self) -> bool:
        """True if a job whose request has arrived uses a connection reserved for health, cancel and metrics."""
        n_answering = len(self._members[ConnectionState.SERVED]) + len(self._members[ConnectionState.NOT_READING])
        return n_answering > self._max_connections - RESERVED_CONNECTIONS

    def is_over_limit(self, member: Member) -> bool:
        """True if its address has requests on more connections than one address may have, including this one."""
        if not self._max_per_address or member.address is None:
            return False
        n_silent = sum(other.address == member.address for other in self._members[ConnectionState.SILENT])
        return self._n_by_address[member.address] - n_silent > self._max_per_address

    def _put(self, member: Member, state: ConnectionState) -> None:
        self._states[member] = state
        self._members[state][member] = None

    def _others(self, member: Member, *states: ConnectionState) -> Iterator[Member]:
        """Yield the other members in these states, in the order of the states, longest first."""
        return (other for state in states for other in self._members[state] if other is not member)

    def _drop_first(self, members: Iterable[Member]) -> None:
        """Close the first of these, if there is one."""
        if (first := next(iter(members), None)) is not None:
            self.leave(first)
            first.drop()
