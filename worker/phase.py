"""The worker's state as clients see it (docs/protocol.md 3)."""

from enum import Enum, auto


class Phase(Enum):
    """The rows of docs/protocol.md 3."""

    STARTING = auto()
    READY = auto()
    RESTARTING = auto()
    DRAINING = auto()
    FAILED = auto()


READY_WORDS = {
    Phase.STARTING: "loading",
    Phase.READY: "idle",
    Phase.RESTARTING: "loading",
    Phase.DRAINING: "draining",
    Phase.FAILED: "error",
}
"""/v1/ready's `state`; a ready worker with jobs is "busy"."""
