"""The worker's state as clients see it (docs/protocol.md#http): its phases, and the body of `/health`.

It runs on the front's event loop and reads cached state only, so that an answer never waits for the engine.

    STARTING ──open──▶ READY ◀──engine died, engine loaded──▶ RESTARTING
       └──────────────────┴──────────── drain ───────────────────┴──▶ DRAINING

Every phase goes to FAILED, from which nothing leads away. The engine may die before the front is open, which then goes
from STARTING to RESTARTING.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from worker.apis.core.bodies import HealthBody, KernelsBody, ParityBody, PrefixCacheBody, ReadyState, State
from worker.config.settings import Settings
from worker.wire.jobs import StepDone
from worker.wire.load import Loaded, PrefixCacheFound, Residency


class Phase(Enum):
    """The rows of docs/protocol.md#http."""

    STARTING = auto()
    READY = auto()
    RESTARTING = auto()
    """The engine died, and its successor is not ready yet."""
    DRAINING = auto()
    """No new work is taken; accepted jobs go on."""
    FAILED = auto()
    """The worker is about to exit with code 1."""


LEGAL_MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.RESTARTING, Phase.DRAINING, Phase.FAILED}),
    Phase.READY: frozenset({Phase.RESTARTING, Phase.DRAINING, Phase.FAILED}),
    Phase.RESTARTING: frozenset({Phase.READY, Phase.DRAINING, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.FAILED}),
    Phase.FAILED: frozenset(),
}


STATES: dict[Phase, State] = {
    Phase.STARTING: "starting",
    Phase.READY: "ready",
    Phase.RESTARTING: "restarting",
    Phase.DRAINING: "draining",
    Phase.FAILED: "failed",
}
"""The words of `state` in `/health`."""

READY_WORDS: dict[Phase, ReadyState] = {
    Phase.STARTING: "loading",
    Phase.READY: "idle",
    Phase.RESTARTING: "loading",
    Phase.DRAINING: "draining",
    Phase.FAILED: "error",
}
"""The words of `state` in `/v1/ready`; a ready worker with jobs is "busy"."""


@dataclass(slots=True)
class EngineStatus:
    """The last reports of the current engine about itself; `EngineStatus()` before the first."""

    step: StepDone = field(default_factory=StepDone)
    residency: Residency | None = None
    found: PrefixCacheFound | None = None

    def residency_of(self, facts: Loaded) -> Residency:
        """Return where the model is, by the engine's last report, or after the load if there is none."""
        return self.residency or Residency(is_resident=facts.resident, memory_bytes=facts.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontStatus:
    """The front's own part of `/health`."""

    phase: Phase
    vram_bytes: int
    uptime_s: float
    n_running: int
    n_waiting: int
    parity: ParityBody | None


def health_body(settings: Settings, facts: Loaded | None, engine: EngineStatus, front: FrontStatus) -> HealthBody:
    """Make the body of `/health`; `facts` are None until a model is loaded."""
    found = facts.determinism if facts else None
    return HealthBody(
        status="healthy" if front.phase in {Phase.READY, Phase.DRAINING} else "unhealthy",
        vram_bytes=front.vram_bytes,
        worker_id=settings.worker_id,
        state=STATES[front.phase],
        model=facts.name if facts else None,
        model_ref=settings.reported_model_ref,
        quant_kind=facts.quant_kind if facts else None,
        resident=facts is not None and engine.residency_of(facts).is_resident,
        vram_bytes_used=front.vram_bytes,
        memory_bytes=facts.memory_bytes if facts else 0,
        tokenizer_kind=facts.tokenizer_kind if facts else None,
        vocab_size=facts.vocab_size if facts else None,
        context_length=facts.context_length if facts else None,
        uptime_seconds=int(front.uptime_s),
        slots_total=facts.parallel if facts else 0,
        slots_busy=front.n_running,
        queue_depth=front.n_waiting,
        prefill_chunk=facts.prefill_chunk if facts else None,
        prefix_cache=PrefixCacheBody(
            tokens=engine.step.prefix_tokens,
            bytes=engine.step.prefix_bytes,
            limit_bytes=facts.prefix_cache_bytes if facts else 0,
            off_because=facts.prefix_cache_off if facts else None,
            restored_tokens=engine.found.n_tokens if engine.found else 0,
            restored_bytes=engine.found.n_bytes if engine.found else 0,
            checkpoint_bytes=facts.checkpoint_bytes if facts else 0,
            checkpoint_stride=facts.checkpoint_stride if facts else 0,
        ),
        deterministic=settings.deterministic,
        determinism="untested" if found is None else "same" if found.is_same else "differs",
        determinism_differences=found.differences if found else (),
        determinism_tried=found.tried if found else None,
        parity=front.parity,
        drafts=facts.drafts if facts else None,
        draft_model=facts.draft if facts else None,
        amx=facts.amx if facts else None,
        batch_invariant=facts.batch_invariance if facts else None,
        kernels=KernelsBody(why=facts.kernels.why, ours=dict(facts.kernels.ours), stock=dict(facts.kernels.stock))
        if facts
        else None,
        attention=facts.attention if facts else None,
    )
