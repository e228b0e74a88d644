"""The worker's state as clients see it (docs/protocol.md 3)."""

from enum import Enum, auto

from worker.protocol.bodies import ReadyState, State


class Phase(Enum):
    """The rows of docs/protocol.md 3."""

    STARTING = auto()
    READY = auto()
    RESTARTING = auto()
    DRAINING = auto()
    FAILED = auto()


STATES: dict[Phase, State] = {
    Phase.STARTING: "starting",
    Phase.READY: "ready",
    Phase.RESTARTING: "restarting",
    Phase.DRAINING: "draining",
    Phase.FAILED: "failed",
}
"""/health's `state`."""

READY_WORDS: dict[Phase, ReadyState] = {
    Phase.STARTING: "loading",
    Phase.READY: "idle",
    Phase.RESTARTING: "loading",
    Phase.DRAINING: "draining",
    Phase.FAILED: "error",
}
"""/v1/ready's `state`; a ready worker with jobs is "busy"."""
