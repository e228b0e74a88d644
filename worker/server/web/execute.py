"""The route of `/execute`: a body becomes a job, and the job's events become the answer.

No rule of the worker is in this module. Runs on the front's event loop, and waits for nothing but the client.
"""

from functools import partial

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from worker.apis.core.events import Dialect
from worker.apis.core.headers import request_id, trace_context
from worker.apis.core.job_request import JobRequest
from worker.apis.pool.execute import checked_prompt, parse_execute
from worker.apis.pool.framing import choose_dialect
from worker.server.front.state import Front
from worker.server.web.bodies import AnyRequest, Bodies
from worker.server.web.connection import check_address, connection_of
from worker.server.web.middleware import counted
from worker.server.web.refusals import render_error
from worker.server.web.streaming import JobResponse


def execute_route(front: Front, bodies: Bodies) -> HTTPRouteHandler:
    timeout_s, max_tokens_out = front.settings.execute_timeout_s, front.settings.execute_tokens_out

    @post("/execute", status_code=200)
    async def execute(request: AnyRequest) -> ASGIResponse:
        """Stream a job's tokens as server-sent events, or as JSON lines if Accept asks for them."""
        with counted(front, request):
            check_address(request.scope)
            dialect = choose_dialect(request.headers.get("accept"), sse_event_names=front.settings.sse_event_names)
            asked = await bodies.decoded(
                request, partial(_read_execute, front=front, dialect=dialect, max_tokens_out=max_tokens_out)
            )
            jobs = front.open_jobs(
                [asked],
                request.headers.get("x-deadline"),
                request.scope["state"]["correlation_id"],
                timeout_s=timeout_s,
                trace=trace_context(request.scope["headers"]),
                is_crowded=connection_of(request.scope).limits.is_full,
            )
        job_id = request_id(jobs[0].request.job_id)
        return JobResponse(front, jobs, render_error, {} if job_id is None else {"x-request-id": job_id})

    return execute


def _read_execute(body: bytearray, front: Front, dialect: Dialect, max_tokens_out: int) -> JobRequest:
    """Raises: BodyRejected, FieldsRefused."""
    request = parse_execute(body)
    vocab_size = front.facts.vocab_size if front.facts is not None else None
    prompt = checked_prompt(request, max_tokens_out, vocab_size, max_prompt_chars=front.settings.max_prompt_chars)
    return JobRequest(job_id=request.job_id, fields=request, prompt=prompt, dialect=dialect)
