"""Bodies in: bytes → `ExecuteRequest` or `CancelRequest`, or the text/plain refusal legacy clients know.

Owns: the fields of PROTOCOL.md 4, their types and defaults, what counts as JSON and what as the wrong shape.
Refuses to know: whether values are in range (rules.py), HTTP, the engine. Pure; runs on the front's event loop.
"""

import struct
from functools import cache
from typing import Annotated, TypeVar

import msgspec

from worker.errors import WorkerError

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64_MAX = 2**64 - 1

_NUMBER_STARTS = b"-0123456789"


class BodyRejected(WorkerError):
    """No request could be read. Answer `http_status` with `str(error)`, verbatim, as text/plain."""

    code, http_status, retriable = "INVALID_REQUEST", 400, False


class MalformedJson(BodyRejected):
    wording = "Failed to parse the request body as JSON: {}"


class WrongShape(BodyRejected):
    """JSON, but a field is missing, given twice, or of the wrong type."""

    http_status = 422
    wording = "Failed to deserialize the JSON body into the target type: {}"


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /execute`. Floats hold f32 values, possibly infinite; ranges are rules.py's business."""

    job_id: str
    prompt: str
    max_tokens: U32
    temperature: float = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    top_p: float = 1.0
    top_k: U32 = 0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    min_p: float = 0.0

    def __post_init__(self) -> None:
        # msgspec's own bounds end at 2**63 - 1.
        if self.seed is not None and self.seed > U64_MAX:
            raise ValueError(f"seed: Expected `int` <= {U64_MAX}")


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /cancel`."""

    job_id: str


def parse_execute(body: bytes) -> ExecuteRequest:
    """Read an execute request; unknown fields are ignored. Raises: MalformedJson, WrongShape."""
    return _parse(body, ExecuteRequest)


def parse_cancel(body: bytes) -> CancelRequest:
    """Read a cancel request; unknown fields are ignored. Raises: MalformedJson, WrongShape."""
    return _parse(body, CancelRequest)


def narrow(value: float) -> float:
    """The nearest f32, as Rust's `as f32` gives it: what is too large becomes an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


Shape = TypeVar("Shape", bound=msgspec.Struct)


def _parse(body: bytes, shape: type[Shape]) -> Shape:
    decoders = _decoders(shape)
    values: dict[str, object] = {}
    for member, raw in _members(body).items():
        name = member.text
        if name in values:
            raise WrongShape(f"duplicate field `{name}`")
        if name in decoders:
            values[name] = _value(name, bytes(raw), decoders[name])
    for field in msgspec.structs.fields(shape):
        if field.required and field.name not in values:
            raise WrongShape(f"missing field `{field.name}`")
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        raise WrongShape(str(error)) from error


@cache
def _decoders(shape: type[msgspec.Struct]) -> dict[str, msgspec.json.Decoder[object]]:
    return {field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(shape)}


def _value(name: str, raw: bytes, decoder: msgspec.json.Decoder[object]) -> object:
    if decoder.type is float and raw[0] in _NUMBER_STARTS:
        return narrow(float(raw))  # unlike msgspec's, never out of range
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise WrongShape(f"{name}: {error}") from error


class _Name:
    """A member's name that equals nothing but itself, so that a dict keeps members given twice."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_KNOWN = frozenset(ExecuteRequest.__struct_fields__ + CancelRequest.__struct_fields__)
_UNKNOWN = _Name("")
"""One for all names nobody asks for, so that a body full of them stays cheap."""


def _as_name(_type: type, text: str) -> _Name:
    return _Name(text) if text in _KNOWN else _UNKNOWN


_document = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_as_name)


def _members(body: bytes) -> dict[_Name, msgspec.Raw]:
    """The undecoded values of a JSON object, in order, after the whole body has proved to be JSON."""
    try:
        body.decode()  # msgspec does not look into the strings it skips
        _document.decode(body)
        return _object.decode(body)
    except msgspec.ValidationError as error:
        raise WrongShape(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedJson(str(error)) from error
    except RecursionError as error:
        raise MalformedJson("nested too deeply") from error
