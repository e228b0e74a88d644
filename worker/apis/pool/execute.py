"""Bodies in: bytes → `ExecuteRequest` or `CancelRequest`, or the text/plain refusal legacy clients know.

Owns: the fields of docs/protocol.md#post-execute, then those of our own, their types and defaults, what counts as JSON
and what as a wrong shape. Pure.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from worker.apis.core.bodies import Problems
from worker.apis.core.constraints import schema_text
from worker.apis.core.conversation import MAX_MESSAGES, read_conversation
from worker.apis.core.json_bytes import fault_of, without_mark
from worker.apis.core.rules import check_sampling
from worker.errors import WorkerError
from worker.wire.encoding import doc
from worker.wire.jobs import U32, Prompt, SamplingParams, SchemaText, narrow

_NUMBER_STARTS = b"-0123456789"


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
        if name in readers:
            values[name] = _value(name, bytes(raw), readers[name])
    for field in msgspec.structs.fields(shape):
        if field.required and field.name not in values:
            raise WrongShape(f"missing field `{field.name}`")
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        raise WrongShape(str(error)) from error


def _value(name: str, raw: bytes, read: Read) -> object:
    try:
        return read(raw)
    except msgspec.ValidationError as error:
        raise WrongShape(f"{name}: {error}") from error
    except RecursionError as error:
        raise MalformedJson("nested too deeply") from error


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
    if raw[0] in _NUMBER_STARTS:
        return narrow(float(raw))  # unlike msgspec's, never out of range
    return _float.decode(raw)


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


def _as_name(_type: type, text: str) -> _Name:
    return _Name(text) if text in _KNOWN else _UNKNOWN


_entries = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=lambda _type, text: _Name(text))
_document = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_as_name)


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
    _prompt(problems, request.prompt, max_prompt_chars)
    _max_tokens(problems, request.max_tokens, max_tokens_out)
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


def _prompt(problems: Problems, prompt: str | UnsetType, most: int) -> None:
    if prompt is UNSET:
        return
    if not prompt:
        problems.add("prompt", f"length(1..={most})", "must not be empty")
    elif len(prompt) > most:
        problems.add("prompt", f"length(1..={most})", f"must be at most {most} characters (got {len(prompt)})")


def _max_tokens(problems: Problems, max_tokens: int, most: int) -> None:
    if not 1 <= max_tokens <= most:
        text = "must be at least 1" if max_tokens < 1 else f"must be at most {most} (got {max_tokens})"
        problems.add("max_tokens", f"range(1..={most})", text, value=str(max_tokens))
