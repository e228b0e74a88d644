"""Requests, and the events of a job, for the tests of what becomes of them."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from worker.apis.core.answers import Choice, Heading
from worker.apis.core.events import EndEvent, ErrorEvent, StartedEvent
from worker.apis.core.request import Request, Terms
from worker.wire.jobs import Finished, JobKey, Logprob, StopReason, TokenId, TopToken
from worker.wire.prompts import Conversation

TERMS = Terms(
    model="toy",
    is_strict=False,
    max_tokens_out=64,
    max_text_chars=1000,
    n_ctx=2048,
    vocab_size=100,
    template_keys=frozenset({"reasoning_effort", "enable_thinking"}),
)
HEADING = Heading(id="x-1", created=7, model="toy", system_fingerprint="fp_0")
STOP = "###"
"""The stop that matches."""
ASKED = {"messages": [{"role": "user", "content": "Hello"}]}


def talk(asked: Request) -> Conversation:
    """The only prompt of a request, a conversation."""
    (prompt,) = asked.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def entry(
    text: str, token: int, logprob: float = -0.5, *top: tuple[str, int, float], raw: bytes | None = None
) -> Logprob:
    tops = tuple(TopToken(other, TokenId(number), value) for other, number, value in top)
    return Logprob(TopToken(text, TokenId(token), logprob, raw), tops)


def start(choice: Choice, n_prompt: int = 5, n_cached: int = 2) -> bytes:
    return choice.started(
        StartedEvent(job_id="x-1", model="toy", started_at="", seed=1, prompt_tokens=n_prompt, cached_tokens=n_cached)
    )


def finish(choice: Choice, reason: StopReason, n_drawn: int, logprobs: Sequence[Logprob] = ()) -> bytes:
    event = EndEvent(
        tokens_out=n_drawn,
        decode_time_ms=1,
        stop_reason=reason,
        tokens_sampled=n_drawn,
        prompt_tokens=5,
        time_to_first_token_ms=1,
        stop_sequence_matched=STOP if reason == "STOP_SEQUENCE" else msgspec.UNSET,
    )
    stop = STOP if reason == "STOP_SEQUENCE" else None
    return choice.end(event, Finished(JobKey(1), reason, stop, n_drafted=3, n_accepted=2), logprobs)


def fail(choice: Choice) -> bytes:
    return choice.error(ErrorEvent(code="ENGINE_RESTARTED", message="the engine was restarted", retriable=True))


def objects(stream: bytes) -> list[Any]:
    """The contents of the frames of a stream; `[DONE]` as text."""
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    texts = [frame.removeprefix("data: ") for frame in frames]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]
