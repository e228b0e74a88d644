"""What a client ordered, checked and complete, and what every job needs of the worker around it."""

import secrets
from dataclasses import dataclass

from worker.engine.contract import Sampling
from worker.metrics import Metrics
from worker.protocol.events import Dialect
from worker.protocol.request import ExecuteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the client asked for, checked, with its seed drawn."""

    job_id: str
    prompt: str
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    grammar: str | None
    json_schema: str | None
    """As JSON text."""
    correlation_id: str
    arrived_s: float
    """time.monotonic() at arrival; all limits count from here."""
    expires_s: float
    """When the job's time is up: the earlier of --inference-timeout-sec and X-Deadline."""


def order_of(request: ExecuteRequest, *, correlation_id: str, arrived_s: float, expires_s: float) -> Order:
    """The order of a valid request; a missing seed is drawn here, once, so that it can be reported and repeated."""
    return Order(
        job_id=request.job_id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        sampling=Sampling(
            seed=request.seed if request.seed is not None else secrets.randbits(64),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            repetition_penalty=request.repetition_penalty,
            min_p=request.min_p,
        ),
        stop=request.stop,
        grammar=None,
        json_schema=None,
        correlation_id=correlation_id,
        arrived_s=arrived_s,
        expires_s=expires_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every job's events and counters need of the worker."""

    dialect: Dialect
    model: str
    vram_bytes: int
    metrics: Metrics
