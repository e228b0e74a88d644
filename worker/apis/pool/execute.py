"""`/execute` and `/cancel` (docs/protocol.md#post-execute): bodies become requests, or the text/plain refusal that old
clients know, and a job's events become server-sent events or JSON lines. Pure.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import schema_text
from worker.apis.core.conversation import MAX_MESSAGES, read_conversation
from worker.apis.core.events import (
    EVENT_TYPES,
    SIGN_OF_LIFE,
    SSE_TYPE,
    Dialect,
    EndEvent,
    ErrorEvent,
    Event,
    MetricsEvent,
    Piece,
    SampledLogprob,
    StartedEvent,
    TokenEvent,
    TopLogprob,
)
from worker.apis.core.received import fault_of, without_mark
from worker.apis.core.rules import check_sampling
from worker.errors import WorkerError
from worker.wire.encoding import doc, encode_json
from worker.wire.jobs import U32, Finished, Logprob, Prompt, SamplingParams, SchemaText, narrow


class BodyRejected(WorkerError):
    """No request could be read. The answer is `http_status` with `str(error)`, verbatim, as text/plain."""

    code, http_status, retriable = "INVALID_REQUEST", 400, False


class MalformedJson(BodyRejected):
    wording, unquoted = "Failed to parse the request body as JSON: {}", "the body is not JSON"


class WrongShape(BodyRejected):
    """JSON, but a field is missing, given twice, or of the wrong type."""

    http_status = 422
    wording = "Failed to deserialize the JSON body into the target type: {}"


class _Prompted(SamplingParams, frozen=True):
    """A job's name and its prompt. They are not keyword-only, so that they stand before the fields of the base."""

    job_id: Annotated[str, doc("The client's name for the job; unique among those in flight.", minLength=1)]
    prompt: Annotated[
        str | UnsetType,
        doc("Raw model input: special tokens are parsed, no template is applied. --max-prompt-chars.", minLength=1),
    ] = UNSET


class ExecuteRequest(_Prompted, frozen=True, kw_only=True):
    """The body of `POST /execute`."""

    max_tokens: Annotated[
        U32, doc("Most tokens to generate; the upper limit is --max-tokens-out. Cut to the context's room.", minimum=1)
    ]
    messages: Annotated[
        Any,
        doc(
            "A conversation instead of a prompt, for the model's chat template; its texts together --max-prompt-chars.",
            type=["array", "null"],
            items={"$ref": "#/components/schemas/Message"},
            minItems=1,
            maxItems=MAX_MESSAGES,
        ),
    ] = None
    chat_template_kwargs: Annotated[
        Any,
        doc("Variables for the chat template; they override --chat-template-kwargs.", type=["object", "null"]),
    ] = None


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /cancel`."""

    job_id: str


def parse_execute(body: bytes | bytearray) -> ExecuteRequest:
    """Read an execute request; unknown fields are ignored. Raises: MalformedJson, WrongShape."""
    request = _parse(body, ExecuteRequest)
    if request.prompt is UNSET and request.messages is None:
        raise WrongShape("missing field `prompt`")
    return request


def parse_cancel(body: bytes | bytearray) -> CancelRequest:
    """Read a cancel request; unknown fields are ignored. Raises: MalformedJson, WrongShape."""
    return _parse(body, CancelRequest)


Shape = TypeVar("Shape", bound=msgspec.Struct)
Read = Callable[[bytes], object]


def _parse(body: bytes | bytearray, shape: type[Shape]) -> Shape:
    readers = _readers(shape)
    values: dict[str, object] = {}
    for member, raw in _members(body).items():
        name = member.text
        if name in values:
            raise WrongShape(f"duplicate field `{name}`")
        if name not in readers:
            continue
        try:
            values[name] = readers[name](bytes(raw))
        except msgspec.ValidationError as error:
            raise WrongShape(f"{name}: {error}") from error
        except RecursionError as error:
            raise MalformedJson("nested too deeply") from error
    for field in msgspec.structs.fields(shape):
        if field.required and field.name not in values:
            raise WrongShape(f"missing field `{field.name}`")
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        raise WrongShape(str(error)) from error


@cache
def _readers(shape: type[msgspec.Struct]) -> dict[str, Read]:
    return {field.name: _reader(field.type) for field in msgspec.structs.fields(shape)}


def _reader(wanted: Any) -> Read:
    bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if bare is float:
        return _number
    if bare == SchemaText | None:
        return schema_text
    return _numbers if bare == dict[str, float] else msgspec.json.Decoder(wanted).decode


_float = msgspec.json.Decoder(float)


def _number(raw: bytes) -> float:
    # A float() is never out of range.
    return narrow(float(raw)) if raw[0] in b"-0123456789" else _float.decode(raw)


def _numbers(raw: bytes) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for member, number in _entries.decode(raw).items():
        if member.text in numbers:
            raise msgspec.ValidationError("a name is given twice")
        numbers[member.text] = _number(bytes(number))
    return numbers


class _Name:
    """A member's name that equals nothing but itself, so that a dict keeps a member that is given twice."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_KNOWN = frozenset(ExecuteRequest.__struct_fields__ + CancelRequest.__struct_fields__)
_UNKNOWN = _Name("")
"""One object for all names that no request has, so that a body full of them stays cheap."""


_entries = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=lambda _type, text: _Name(text))
_document = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(
    dict[_Name, msgspec.Raw], dec_hook=lambda _type, text: _Name(text) if text in _KNOWN else _UNKNOWN
)


def _members(body: bytes | bytearray) -> dict[_Name, msgspec.Raw]:
    """The undecoded values of a JSON object, in order, after the whole body has proved to be JSON."""
    body = without_mark(body)
    try:
        body.decode()  # msgspec does not look into the strings it skips
        _document.decode(body)
        return _object.decode(body)
    except msgspec.ValidationError as error:
        raise WrongShape(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedJson(fault_of(body, error)) from error
    except RecursionError as error:
        raise MalformedJson("nested too deeply") from error


def checked_prompt(
    request: ExecuteRequest, max_tokens_out: int, vocab_size: int | None, *, max_prompt_chars: int
) -> Prompt:
    """Return the prompt that the model reads, if no rule is broken.

    `max_tokens_out` is the largest max_tokens allowed. While `vocab_size` is None, ids are not compared with it.
    `max_prompt_chars` counts Unicode scalar values. Raises: FieldsRefused with all broken rules, in the order of the
    fields.
    """
    problems = Problems()
    if not request.job_id:
        problems.add("job_id", "non_empty", "must not be empty", value="")
    if request.prompt == "":
        problems.add("prompt", f"length(1..={max_prompt_chars})", "must not be empty")
    elif request.prompt is not UNSET and len(request.prompt) > max_prompt_chars:
        text = f"must be at most {max_prompt_chars} characters (got {len(request.prompt)})"
        problems.add("prompt", f"length(1..={max_prompt_chars})", text)
    if not 1 <= request.max_tokens <= max_tokens_out:
        n = request.max_tokens
        text = "must be at least 1" if n < 1 else f"must be at most {max_tokens_out} (got {n})"
        problems.add("max_tokens", f"range(1..={max_tokens_out})", text, value=str(n))
    check_sampling(problems, request, max_tokens_out, vocab_size)
    for field in ("messages", "chat_template_kwargs"):
        if request.prompt is not UNSET and getattr(request, field) is not None:
            text = "cannot go with prompt, which no template is applied to; send one of them"
            problems.add(field, "exclusive(prompt)", text)
    prompt: Prompt | UnsetType | None = request.prompt
    if request.messages is not None:
        prompt = read_conversation(
            problems, request.messages, template_kwargs=request.chat_template_kwargs, max_chars=max_prompt_chars
        )
    problems.check()
    assert not isinstance(prompt, UnsetType)  # parse_execute has refused a request without either
    assert prompt is not None  # or there were problems
    return prompt


JSON_LINES_TYPES: Final = ("application/jsonl", "application/x-ndjson")

_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE | re.ASCII)
"""RFC 9110, 12.4.2."""


@dataclass(frozen=True)
class Framing(Dialect):
    """The dialect of `/execute`: each event is its JSON between a lead and a tail. It keeps nothing, so that all jobs
    share it."""

    media_type: str
    leads: Mapping[str, bytes]
    """The bytes before the JSON, by event type."""
    tail: bytes
    comment: bytes = b""
    """The sign of life."""

    def sign_of_life(self) -> bytes:
        return self.comment

    def started(self, event: StartedEvent) -> bytes:
        return self._frame("started", event)

    def token(self, piece: Piece) -> bytes:
        sampled = [_sampled(entry) for entry in piece.logprobs] if piece.logprobs else msgspec.UNSET
        return self._frame("token", TokenEvent(t=piece.text, i=piece.index, logprobs=sampled))

    def metrics(self, event: MetricsEvent) -> bytes:
        return self._frame("metrics", event)

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:  # noqa: ARG002
        return self._frame("end", event)

    def error(self, event: ErrorEvent) -> bytes:
        return self._frame("error", event)

    def _frame(self, event_type: str, event: Event) -> bytes:
        return self.leads[event_type] + encode_json(event) + self.tail


class _TextOnly(Framing):
    """No framing: a token event is its text, and the others are left out."""

    def _frame(self, event_type: str, event: Event) -> bytes:  # noqa: ARG002 - the base class's signature
        return event.t.encode() if isinstance(event, TokenEvent) else b""


TEXT_ONLY: Final = _TextOnly("text/plain", {}, b"")
"""The form that `llorch-worker generate` writes; no client can ask for it."""

_SSE = Framing(SSE_TYPE, dict.fromkeys(EVENT_TYPES, b"data: "), b"\n\n", SIGN_OF_LIFE)
_NAMED_LEADS = {name: b"event: %b\ndata: " % name.encode() for name in EVENT_TYPES}
_NAMED_SSE = Framing(SSE_TYPE, _NAMED_LEADS, b"\n\n", SIGN_OF_LIFE)
_JSON_LINES = {name: Framing(name, dict.fromkeys(EVENT_TYPES, b""), b"\n") for name in JSON_LINES_TYPES}


def choose_dialect(accept: str | None, *, sse_event_names: bool) -> Framing:
    """Return the framing for an Accept header: the one that it names with the most weight, the first among equals.

    Wildcards ask for nothing in particular, and no header is refused: everything else gets server-sent events.
    """
    best, best_weight = SSE_TYPE, 0.0
    for entry in (accept or "").split(","):
        media_type, *parameters = entry.split(";")
        name = media_type.strip().lower()
        weight = _weight(parameters)
        if (name == SSE_TYPE or name in _JSON_LINES) and weight > best_weight:
            best, best_weight = name, weight
    if best in _JSON_LINES:
        return _JSON_LINES[best]
    return _NAMED_SSE if sse_event_names else _SSE


def _weight(parameters: list[str]) -> float:
    return next((float(match[1]) for match in map(_WEIGHT.fullmatch, parameters) if match), 1.0)


def _sampled(entry: Logprob) -> SampledLogprob:
    top = [TopLogprob(token=other.text, id=other.id, logprob=other.logprob) for other in entry.top]
    token = entry.token
    return SampledLogprob(token=token.text, id=token.id, logprob=token.logprob, top=top)
