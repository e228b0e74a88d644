"""All open connections, and the choice of the one to close when there are too many (docs/protocol.md#http)."""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Protocol

from uvicorn.server import ServerState

MAX_CONNECTIONS = 1024
RESERVED_CONNECTIONS = 16
"""Jobs cannot use these connections: they are reserved for health, cancel and metrics."""

OTHER_OPEN_FILES = 64
"""The descriptors for the listener, the loop, the engine's pipes, the log and calls to the pool manager."""


def affordable_connections(n_open_files: int) -> int:
    """The number of connections for which the process has descriptors, at most the protocol's limit: libuv drops others
    silently. `n_open_files` is the process's limit; a number below 0 means no limit."""
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
    """A connection; connection.py and the tests implement it. It has no address if it ended before that was read.
    `drop` closes it at once, and `leave` follows later."""

    @property
    def address(self) -> str | None: ...
    def drop(self) -> None: ...


class ConnectionLimits(ServerState):
    """The open connections. Each one calls `join`, then `set` whenever its state may have changed, then `leave`.

    `max_per_address` 0 means no limit.
    """

    def __init__(self, max_connections: int, max_per_address: int = 0) -> None:
        super().__init__()
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._states: dict[Member, ConnectionState] = {}
        """Those that have had their state for the longest time come first."""

    @property
    def n_members(self) -> int:
        return len(self._states)

    def join(self, member: Member) -> None:
        """Add a connection. If there are too many, close the least useful one, in the worst case the new one.

        If its address has too many, and all others of them have requests, it stays, because it may only ask for health.
        """
        near = self._neighbours(member)
        if 0 < self._max_per_address <= len(near):
            self._drop_first(near, ConnectionState.SILENT)
        if self.n_members < self._max_connections or self._drop_first(self._states, *_CLOSED_IN_ORDER):
            self._states[member] = ConnectionState.SILENT
        else:
            member.drop()

    def leave(self, member: Member) -> None:
        """Remove a closed connection. Idempotent, because a dropped connection was removed earlier."""
        self._states.pop(member, None)

    def set(self, member: Member, state: ConnectionState) -> None:
        """Set a member's state. If it is unchanged, the member keeps its place in the order."""
        if self._states.get(member, state) is not state:
            del self._states[member]
            self._states[member] = state

    @property
    def is_full(self) -> bool:
        """True if a job whose request has arrived uses a connection reserved for health, cancel and metrics."""
        limit = self._max_connections - RESERVED_CONNECTIONS
        answering = (ConnectionState.SERVED, ConnectionState.NOT_READING)
        return self.n_members > limit and sum(state in answering for state in self._states.values()) > limit

    def is_over_limit(self, member: Member) -> bool:
        """True if its address has requests on more connections than one address may have, including this one."""
        asking = [other for other in self._neighbours(member) if self._states[other] is not ConnectionState.SILENT]
        return len(asking) > self._max_per_address

    def _neighbours(self, member: Member) -> list[Member]:
        """The members with its address, if their number has a limit."""
        if not self._max_per_address or member.address is None:
            return []
        return [other for other in self._states if other.address == member.address]

    def _drop_first(self, members: Iterable[Member], *states: ConnectionState) -> bool:
        """Close the first of these in the first state that one of them has. Returns False if there is none."""
        first = next((one for state in states for one in members if self._states[one] is state), None)
        if first is not None:
            self.leave(first)
            first.drop()
        return first is not None
