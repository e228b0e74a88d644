"""The log lines, counters and spans of each job, at its start and its end; and the rate of jobs, for Retry-After.

It runs on the front's event loop. It reads jobs and changes none.
"""

import math
from typing import TYPE_CHECKING

from worker.config.settings import Settings
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.observe.redaction import Secrets
from worker.server.front.job import Job, in_ms
from worker.wire.load import Loaded
from worker.wire.prompts import Conversation

if TYPE_CHECKING:
    from worker.observe.traces import Traces, Value  # an extra

log = get_logger()

MAX_LOGGED_ID = 256
"""The largest number of characters of a client's job_id in a log line, and of any client's text in a span."""

MAX_WAIT_S = 600
_NEWEST_WEIGHT = 0.1
"""The weight of the newest job in the running mean."""


class Throughput:
    """The measured rate at which jobs leave, and the wait of one more. It is pure."""

    def __init__(self) -> None:
        self._mean_service_s = 1.0

    def finished(self, service_s: float) -> None:
        """A job ended by itself, `service_s` after it got its slot."""
        self._mean_service_s += _NEWEST_WEIGHT * (service_s - self._mean_service_s)

    def wait_s(self, *, n_waiting: int, n_slots: int) -> int:
        """Return the whole seconds until a place should be free for one more; 1..MAX_WAIT_S."""
        return min(max(1, math.ceil(self._mean_service_s * (n_waiting + 1) / n_slots)), MAX_WAIT_S)


class JobLog:
    def __init__(self, settings: Settings, metrics: Metrics, traces: "Traces | None") -> None:
        self._settings = settings
        self._model_ref = settings.reported_model_ref
        self._secrets = Secrets(settings.api_key)
        self._metrics = metrics
        self._traces = traces
        self.throughput = Throughput()

    def began(self, job: Job, facts: Loaded | None) -> None:
        log.info("execute_start", **self._fields(job, facts))

    def ended(self, job: Job, facts: Loaded | None) -> None:
        """Write one canonical line, the counters and the span of a job that has its outcome."""
        assert job.outcome is not None
        if job.outcome == "success":
            self.throughput.finished(job.service_s)
        if job.finish_reason is None:
            self._metrics.rejected()
        else:
            self._metrics.finished(
                job.outcome,
                job.finish_reason,
                had_slot=job.queue_time_s is not None,
                n_answers=job.request.asked.n if job.request.number == 0 else None,
                max_tokens=job.submit.sampling.max_tokens,
                prompt_tokens=job.prompt_tokens,
                cached_tokens=job.cached_tokens,
                tokens_generated=job.tokens_sampled,
                duration_s=job.age_s,
                prefill_s=job.prefill_time_s,
                decode_s=job.decode_time_s,
            )
        if self._traces is not None:
            served = self._settings.served_name(facts.name if facts is not None else "")
            attributes, admission = self._span_of(job, served), job.admission
            self._traces.add(admission.trace, admission.correlation_id, admission.arrived_s, job.code, attributes)
        log.info(
            "execute_end",
            **self._fields(job, facts),
            outcome=job.outcome,
            code=job.code,
            tokens_in=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            tokens_out=job.tokens_out,
            queue_time_ms=in_ms(job.queue_time_s),
            time_to_first_token_ms=in_ms(job.time_to_first_token_s),
            decode_time_ms=in_ms(job.decode_time_s),
        )

    def _span_of(self, job: Job, served: str) -> "dict[str, Value | None]":
        request, submit, sampling = job.request, job.submit, job.submit.sampling
        has_token = job.time_to_first_token_s is not None
        decode_s = job.decode_time_s if has_token else None
        return {
            "gen_ai.operation.name": "chat" if isinstance(submit.prompt, Conversation) else "text_completion",
            "gen_ai.request.id": self._shown(request.job_id),
            "gen_ai.request.model": self._shown(request.asked.model or served),
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.response.model": served,
            "gen_ai.response.finish_reasons": None if job.finish_reason is None else [job.finish_reason],
            "gen_ai.usage.prompt_tokens": job.prompt_tokens,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": job.cached_tokens,
            "gen_ai.usage.completion_tokens": job.tokens_sampled,
            "gen_ai.usage.output_tokens": job.tokens_sampled,
            "gen_ai.latency.time_in_queue": job.queue_time_s,
            "gen_ai.latency.time_to_first_token": job.time_to_first_token_s,
            "gen_ai.latency.time_in_model_prefill": job.prefill_time_s,
            "gen_ai.latency.time_in_model_decode": decode_s,
            "gen_ai.latency.e2e": job.age_s,
        }

    def _shown(self, text: str) -> str:
        """Mask a client's text before it is cut: a client may send the API key anywhere in its job_id."""
        return self._secrets.mask_known(text)[:MAX_LOGGED_ID]

    def _fields(self, job: Job, facts: Loaded | None) -> dict[str, object]:
        return {
            "job_id": self._shown(job.request.job_id),
            "correlation_id": job.admission.correlation_id,
            "model_ref": self._model_ref,
            "device": facts.device_name if facts is not None else None,
        }
