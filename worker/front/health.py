"""What `/health` says: facts of the load, and what the engine of the moment has last said of itself.

Cached state only, on the front's event loop: asking never waits for the engine.
"""

from dataclasses import dataclass, field

from worker.config.settings import Settings
from worker.front.phase import STATES, Phase
from worker.protocol.bodies import HealthBody, ParityBody, PrefixCacheBody, TriedBody
from worker.wire.messages import Loaded, Residency, SelfTested, StepDone


@dataclass(slots=True)
class EngineStatus:
    """The engine's last words; `EngineStatus()` for an engine that has not spoken yet."""

    step: StepDone = field(default_factory=StepDone)
    self_tested: SelfTested | None = None
    residency: Residency | None = None

    def residency_of(self, facts: Loaded) -> Residency:
        """Where the model is: as the engine last said, else as it was after the load."""
        return self.residency or Residency(is_resident=facts.resident, memory_bytes=facts.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontStatus:
    """The front's own part."""

    phase: Phase
    vram_bytes: int
    uptime_s: float
    n_running: int
    n_waiting: int
    parity: ParityBody | None


def health_body(settings: Settings, facts: Loaded | None, vitals: EngineStatus, presence: FrontStatus) -> HealthBody:
    tested = vitals.self_tested
    return HealthBody(
        status="healthy" if presence.phase in {Phase.READY, Phase.DRAINING} else "unhealthy",
        vram_bytes=presence.vram_bytes,
        worker_id=settings.worker_id,
        state=STATES[presence.phase],
        model=facts.name if facts else None,
        model_ref=settings.reported_model_ref,
        quant_kind=facts.quant_kind if facts else None,
        resident=facts is not None and vitals.residency_of(facts).is_resident,
        vram_bytes_used=presence.vram_bytes,
        memory_bytes=facts.memory_bytes if facts else 0,
        tokenizer_kind=facts.tokenizer_kind if facts else None,
        vocab_size=facts.vocab_size if facts else None,
        context_length=facts.context_length if facts else None,
        uptime_seconds=int(presence.uptime_s),
        slots_total=facts.parallel if facts else 0,
        slots_busy=presence.n_running,
        queue_depth=presence.n_waiting,
        prefill_chunk=facts.prefill_chunk if facts else None,
        prefix_cache=PrefixCacheBody(
            tokens=vitals.step.prefix_tokens,
            bytes=vitals.step.prefix_bytes,
            limit_bytes=facts.prefix_cache_bytes if facts else 0,
            off_because=facts.prefix_cache_off if facts else None,
        ),
        deterministic=settings.deterministic,
        determinism="untested" if tested is None else "same" if tested.is_same else "differs",
        determinism_differences=tested.differences if tested else (),
        determinism_tried=_tried(tested) if tested else None,
        parity=presence.parity,
    )


def _tried(tested: SelfTested) -> TriedBody:
    return TriedBody(
        prompts=tested.n_prompts,
        widths=tested.widths,
        ways=tested.ways,
        row_multiple=tested.row_multiple,
        most_rows=tested.most_rows,
    )
