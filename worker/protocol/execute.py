"""Bodies in: bytes → `ExecuteRequest` or `CancelRequest`, or the text/plain refusal legacy clients know.

Owns: the fields of docs/protocol.md#post-execute, then those of our own, their types and defaults, what counts as JSON
and what as a wrong shape. Pure.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from worker.errors import WorkerError
from worker.protocol.bodies import U64_MAX
from worker.protocol.constraints import SchemaText, schema_text
from worker.protocol.conversation import MAX_MESSAGES, conversation
from worker.protocol.json_bytes import fault_of, without_mark
from worker.wire.encoding import doc
from worker.wire.prompts import Conversation

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_ZERO_TO_ONE = {"minimum": 0, "maximum": 1}

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


def narrow(value: float) -> float:
    """The nearest f32, as Rust's `as f32` gives it: a number that is too large becomes an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that say how an answer is made, whatever its prompt: `/execute` and `/v1` have them in common. Floats
    hold f32 values, possibly infinite; ranges are the rules' business."""

    max_tokens: Annotated[
        U32, doc("Most tokens to generate; the upper limit is --max-tokens-out. Cut to the context's room.", minimum=1)
    ]
    temperature: Annotated[
        float,
        doc("Divides the logits; 0 takes the most probable token.", minimum=0, maximum=2),
    ] = 1.0
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        doc("Repeats an answer; null draws one, which `started` reports.", maximum=U64_MAX),
    ] = None
    top_p: Annotated[float, doc("Keep the fewest tokens with this much probability; 1 is off.", **_ZERO_TO_ONE)] = 1.0
    top_k: Annotated[U32, doc("Keep this many of the most probable tokens; 0 is off.")] = 0
    repetition_penalty: Annotated[
        float, doc("Above 1 makes tokens generated before less probable; 1 is off.", minimum=0, maximum=2)
    ] = 1.0
    stop: Annotated[
        tuple[Annotated[str, doc("1 to 100 bytes of UTF-8.", minLength=1, maxLength=100)], ...],
        doc("Texts that end the answer and are not shown; each 1 to 100 bytes.", maxItems=4),
    ] = ()
    min_p: Annotated[
        float, doc("Keep tokens with at least this share of the best one's probability; 0 is off.", **_ZERO_TO_ONE)
    ] = 0.0
    logprobs: Annotated[
        U32 | None,
        doc("Report each token's log-probability and this many of the most probable tokens; null is off.", maximum=20),
    ] = None
    frequency_penalty: Annotated[
        float, doc("Taken off a token's logit for each time it was generated; 0 is off.", minimum=-2, maximum=2)
    ] = 0.0
    presence_penalty: Annotated[
        float, doc("Taken off the logit of every token generated before; 0 is off.", minimum=-2, maximum=2)
    ] = 0.0
    repeat_last_n: Annotated[
        I32, doc("How many generated tokens all penalties look at; -1 is all of them, 0 none.", minimum=-1)
    ] = -1
    typical_p: Annotated[
        float, doc("Keep the most typical tokens with this much probability; 1 is off.", **_ZERO_TO_ONE)
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        doc("Keep logits within this many standard deviations of the best; 0 is off.", minimum=0, maximum=100),
    ] = 0.0
    xtc_probability: Annotated[
        float, doc("How often the most probable tokens are left out (XTC); 0 is off.", **_ZERO_TO_ONE)
    ] = 0.0
    xtc_threshold: Annotated[
        float, doc("XTC leaves out all tokens at least so probable but the last; above 0.5 none.", **_ZERO_TO_ONE)
    ] = narrow(0.1)
    dry_multiplier: Annotated[
        float, doc("Strength of the penalty on repeated sequences (DRY); 0 is off.", minimum=0, maximum=100)
    ] = 0.0
    dry_base: Annotated[
        float, doc("DRY grows by this factor for each token a sequence is longer.", minimum=1, maximum=16)
    ] = 1.75
    dry_allowed_length: Annotated[
        U32, doc("The longest repeated sequence that DRY leaves alone, in tokens.", minimum=1, maximum=2048)
    ] = 2
    logit_bias: Annotated[
        dict[str, float],
        doc("Token ids in decimal, and what is added to their logits: -100 to 100; -100 is a ban.", maxProperties=1024),
    ] = {}
    ignore_eos: Annotated[
        bool, doc("Go on to max_tokens: end tokens are never drawn. Not with grammar, json_schema or regex.")
    ] = False
    min_tokens: Annotated[
        U32, doc("Draw no end token and none of stop_token_ids before this many tokens; at most max_tokens.")
    ] = 0
    stop_token_ids: Annotated[
        tuple[U32, ...], doc("Tokens that end the answer as a stop does and are not shown.", maxItems=64)
    ] = ()
    grammar: Annotated[
        str | None,
        doc("What the text follows: GBNF with a `root`, or Lark that begins with `%llguidance`; at most 65536 bytes."),
    ] = None
    json_schema: Annotated[
        SchemaText | None,
        doc(
            "The text is JSON that this schema allows; at most 65536 bytes, 64 levels deep. Not with grammar.",
            anyOf=[{"type": "object"}, {"const": True}, {"type": "null"}],
        ),
    ] = None
    regex: Annotated[
        str | None,
        doc("The whole text matches this expression; at most 65536 bytes. Not with grammar or json_schema."),
    ] = None
    cache_salt: Annotated[
        str | None,
        doc("Cached work is shared only with requests that send the same secret text.", minLength=1, maxLength=256),
    ] = None

    def __post_init__(self) -> None:
        # msgspec's own bounds end at 2**63 - 1.
        if self.seed is not None and self.seed > U64_MAX:
            raise ValueError(f"seed: Expected `int` <= {U64_MAX}")


class _Prompted(GenerationFields, frozen=True):
    """A job's name and its prompt. They are not keyword-only, so that they stand before the fields of the base."""

    job_id: Annotated[str, doc("The client's name for the job; unique among those in flight.", minLength=1)]
    prompt: Annotated[
        str | UnsetType,
        doc("Raw model input: special tokens are parsed, no template is applied. --max-prompt-chars.", minLength=1),
    ] = UNSET


class ExecuteRequest(_Prompted, frozen=True, kw_only=True):
    """The body of `POST /execute`."""

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

    def conversation(self, *, max_chars: int) -> Conversation:
        """The messages, which are there, as the engine gets them. Raises: FieldsRefused."""
        return conversation(self.messages, template_kwargs=self.chat_template_kwargs, max_chars=max_chars)


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
