"""The fields of a request in OpenAI's shape, and how they become those of `/execute`.

Owns: which fields are known, which are refused and which are ignored; their types; what the two generating routes have
in common. Ranges are protocol/rules.py's. null is as absent, for every field. Refuses to know: HTTP
frameworks, the prompt. Pure; runs on the front's event loop, or on a thread for large bodies.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from worker.openai.constraints import ConstrainedRequest, constraint_of
from worker.openai.errors import NotAnObject, UnknownModel, respelled
from worker.protocol.bodies import MAX_ERRORS, FieldError, FieldsRefused, doc
from worker.protocol.conversation import Part, conversation, part_errors
from worker.protocol.execute import ExecuteRequest, narrow
from worker.protocol.json_bytes import fault_of, without_mark
from worker.protocol.rules import int_range, sampling_violations
from worker.protocol.unread import unread
from worker.wire.messages import Conversation

Members = dict[str, Any]
"""The members of a JSON object, as msgspec.json.decode gives them."""

MAX_CHOICES = 16
"""The largest `n`."""
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20

MAX_PREDICTION_CHARS = 131_072
"""A prediction makes as much work in the engine as a prompt, and is there for speed alone."""

MAX_IGNORED = 32
"""How many fields are named as ignored."""
_LONGEST_NAME = 64
_IN_NAMES = "!#$&'*+.^_`|~-"
"""Characters that a header takes without quotes, beside letters and digits (RFC 9110, 5.6.2), less the quoting one."""

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "moderation": (),
    "store": (False,),
    "structural_tag": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that cannot be honoured, and those of their values that ask for nothing, which are ignored."""

_OWN_READING = frozenset(
    {
        *("job_id", "prompt", "messages", "chat_template_kwargs", "max_tokens", "seed", "stop", "logprobs"),
        "json_schema",
    }
)
SHARED = {field.name: field.type for field in msgspec.structs.fields(ExecuteRequest) if field.name not in _OWN_READING}
"""The fields that are `/execute`'s by name, type and meaning, with their types."""

ROUTED_FIELDS = (
    "no_stop_trim",
    "skip_special_tokens",
    "separate_reasoning",
    "stream_reasoning",
    "return_hidden_states",
)
"""Fields that vllm-router 0.1.17 adds to every request as false, whatever its client wants."""

_I64_MAX = 2**63 - 1
_U64 = 2**64

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<inside>.*)`)?", re.DOTALL)
"""How msgspec words a value of a wrong type: it names types, and nothing of the value."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells beside the text."""

    include_usage: Annotated[bool | None, doc("A last chunk without choices and with the usage.")] = None
    continuous_usage_stats: Annotated[bool | None, doc("The usage so far in every chunk of a choice.")] = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the answer will probably repeat, such as a file that is to be changed. It makes the answer faster and
    changes no token of it."""

    type: Annotated[str, doc("The only type.", const="content")]
    content: Annotated[
        str | list[Part], doc("The text, or parts that follow each other.", maxLength=MAX_PREDICTION_CHARS)
    ]


class GeneratingRequest(ConstrainedRequest, frozen=True, kw_only=True):
    """What chat completions and completions both have, beside `SHARED`."""

    model: Annotated[str | None, doc("Any name is taken, unless `--strict-model`.")] = None
    max_tokens: Annotated[
        int | None,
        doc("Maximum tokens to generate; cut to --max-tokens-out and to the room that the context has.", minimum=0),
    ] = None
    n: Annotated[int | None, doc("How many answers to each prompt.", minimum=1, maximum=MAX_CHOICES)] = None
    seed: Annotated[
        int | None, doc("Repeats an answer; a choice's index is added to it.", minimum=-_I64_MAX - 1, maximum=_I64_MAX)
    ] = None
    stop: Annotated[str | list[str] | None, doc("Texts that end the answer and are not shown, at most 16.")] = None
    stream: Annotated[bool | None, doc("Server-sent events, chunk by chunk.")] = None
    stream_options: Annotated[StreamOptions | None, doc("Only with `stream`.")] = None
    prediction: Prediction | None = None
    skip_special_tokens: Annotated[
        bool | None,
        doc("false shows control tokens by their names; a chat is then not divided into reasoning and content."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What this worker allows, by its settings and its model."""

    model: str
    """The name that is served."""
    is_strict: bool
    """Whether no other name may be asked for."""
    max_tokens_out: int
    """The longest answer in tokens, whatever its prompt; a larger max_tokens is cut to it."""
    max_prompt_chars: int
    """The room in a frame to the engine. The context is the limit that clients meet."""
    vocab_size: int
    template_keys: frozenset[str]
    """The variables that the model's chat template reads, besides the messages."""
    takes_predictions: bool = True
    """True if drafts are read from texts at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a request asks for, whatever its prompt is."""

    fields: ExecuteRequest
    """Without its prompt and its job_id, and with the seed of the first choice."""
    model: str | None
    """What the client calls it."""
    n: int
    is_stream: bool
    options: StreamOptions
    names: Mapping[str, str]
    """How the client spells fields that have other names in `/execute`."""
    ignored: tuple[str, ...]
    """Members that change nothing here."""
    prediction: str = ""
    """Submit's."""
    asked_tokens: int | None
    """The max_tokens that the client sent, which `fields` has cut to what an answer can have; None without one."""
    shows_marks: bool = False
    """True if control tokens are shown by their names."""

    def cut_to(self, room: int) -> int | None:
        """The length in tokens to which an answer is cut, if more was asked for than fits in `room`; else None."""
        most = min(self.fields.max_tokens, room)
        return most if self.asked_tokens is not None and self.asked_tokens > most else None

    def choice(self, index: int, job_id: str) -> ExecuteRequest:
        """The fields of one of n answers to a prompt."""
        seed = self.fields.seed
        return msgspec.structs.replace(self.fields, job_id=job_id, seed=None if seed is None else (seed + index) % _U64)


Shape = TypeVar("Shape", bound=msgspec.Struct)


def read_object(body: bytes | bytearray) -> Members:
    """The members of a JSON object; of those given twice the last. Raises: NotAnObject."""
    body = without_mark(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnObject(f"the body is not JSON: {fault_of(body, error)}") from None
    except RecursionError:
        raise NotAnObject("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise NotAnObject("the body must be a JSON object")
    return value


def read_struct(shape: type[Shape], members: Members, errors: list[FieldError]) -> Shape:
    """The fields of `shape`, all of which have defaults. Those of another type are added to the errors."""
    values: Members = {}
    for field in msgspec.structs.fields(shape):
        value = members.get(field.name)
        if value is not None:
            read_field(field.name, value, field.type, values, errors)
    return shape(**values)


def read_field(name: str, value: object, kind: Any, values: Members, errors: list[FieldError]) -> None:
    """Put the value into `values` under its name, or say in the errors why it is not of the type `kind`."""
    try:
        values[name] = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        assert found is not None
        place = name + (found["inside"] or "")
        if missing := _MISSING.fullmatch(found["what"]):
            place += f".{missing[1]}"
            errors.append(FieldError(field=place, constraint="required", message=f"{place} is missing"))
        else:
            errors.append(FieldError(field=place, constraint="type", message=f"{place}: {found['what']}"))


def conversation_of(
    messages: object,
    told: Mapping[str, Any] | None,
    terms: Terms,
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> Conversation:
    """The conversation. Raises: FieldsRefused."""
    return conversation(
        messages,
        template_kwargs=told,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=bool(continue_final_message),
        max_chars=terms.max_prompt_chars,
    )


def check_model(model: str | None, terms: Terms) -> None:
    """Raises: UnknownModel."""
    if terms.is_strict and model is not None and model != terms.model:
        raise UnknownModel(model, terms.model)


def unsupported(members: Members) -> Iterator[FieldError]:
    """Fields that the client means and this worker cannot honour."""
    for name, idle in _UNSUPPORTED.items():
        value = members.get(name)
        if value is not None and value not in idle:
            text = f"{name} is not supported by this worker; leave it out"
            yield FieldError(field=name, constraint="unsupported", message=text)


def ignored_fields(
    members: Members,
    shape: type[msgspec.Struct],
    *,
    known: Collection[str] = (),
    unheeded: Collection[str] = (),
    beside: Iterable[str] = (),
) -> tuple[str, ...]:
    """Members that change nothing here, as a header may name them, at most MAX_IGNORED: those of the request itself
    first, then those inside its fields, then those that were found `beside` it. `unheeded`: fields of the shape that
    count as unknown in this request."""
    fields = {field.name: field.type for field in msgspec.structs.fields(shape) if field.name not in unheeded}
    given = {name: value for name, value in members.items() if value is not None}
    found = chain(
        (name for name in given if not (name in fields or name in known)),
        *(unread(name, value, fields[name]) for name, value in given.items() if name in fields),
        beside,
    )
    return tuple(islice(dict.fromkeys(map(_shown, found)), MAX_IGNORED))


def _shown(name: str) -> str:
    """The name as a header can have it: other characters as in a URL, and as much of it as there is room for."""
    return quote(name[:_LONGEST_NAME], safe=_IN_NAMES)[:_LONGEST_NAME] or '""'


def read_generation(
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    errors: list[FieldError],
    *,
    logprobs: int | None,
    max_tokens: int | None,
    default_tokens: int | None = None,
    least_tokens: int = 1,
    names: Mapping[str, str],
    ignored: Iterable[str] = (),
) -> Generation:
    """Read the fields of a request. The route has read `max_tokens` and `logprobs`, which it spells in its own way. If
    `max_tokens` is None, it is `default_tokens`, or as many as an answer can have. `ignored` are names that the route
    has found besides those of the fields.

    Raises: UnknownModel; FieldsRefused with the errors found so far and here.
    """
    check_model(request.model, terms)
    errors += unsupported(members)
    values = _shared(members, errors) | {"seed": _seed(request.seed, errors), "stop": _stops(request.stop)}
    wanted = constraint_of(request, values, errors)
    spelled = {**names, **wanted.names}
    is_routed = _is_routed(members)
    prediction = _predicted_text(request.prediction, errors)
    if prediction and not terms.takes_predictions:
        prediction, ignored = "", chain(("prediction",), ignored)
    values |= {"job_id": "", "prompt": "", "logprobs": logprobs, **wanted.fields}
    n_most = terms.max_tokens_out
    values["max_tokens"] = (default_tokens or n_most) if max_tokens is None else max_tokens
    fields = msgspec.structs.replace(_NOTHING, **values)
    broken = [
        *int_range("max_tokens", max_tokens, least_tokens),
        *int_range("n", request.n, 1, MAX_CHOICES),
        *sampling_violations(fields, max(n_most, fields.max_tokens), terms.vocab_size, max_stops=MAX_STOPS),
        *_stream_errors(request),
    ]
    errors += respelled(broken, spelled)
    if errors:
        raise FieldsRefused(errors)
    return Generation(
        fields=msgspec.structs.replace(
            fields, max_tokens=min(fields.max_tokens, n_most), min_tokens=min(fields.min_tokens, n_most)
        ),
        model=request.model,
        n=request.n or 1,
        is_stream=bool(request.stream),
        options=request.stream_options or StreamOptions(),
        names=spelled,
        ignored=ignored_fields(
            members, type(request), known=SHARED, unheeded=ROUTED_FIELDS if is_routed else (), beside=ignored
        ),
        prediction=prediction,
        asked_tokens=max_tokens,
        shows_marks=request.skip_special_tokens is False and not is_routed,
    )


_NOTHING = ExecuteRequest(job_id="", prompt="", max_tokens=1)


def _is_routed(members: Members) -> bool:
    """True if a router has added its own fields, with the values that they have if a client sends none."""
    return all(members.get(name) is False for name in ROUTED_FIELDS)


def _shared(members: Members, errors: list[FieldError]) -> Members:
    """The fields that are `/execute`'s own, with floats as the f32 that its fields hold."""
    values: Members = {}
    for name, kind in SHARED.items():
        value = members.get(name)
        if name == "top_k" and value == -1:
            value = 0  # vLLM's off
        if value is not None:
            read_field(name, value, kind, values, errors)
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = narrow(value)
    if biases := values.get("logit_bias"):
        values["logit_bias"] = {token: narrow(bias) for token, bias in biases.items()}
    return values


def _seed(seed: int | None, errors: list[FieldError]) -> int | None:
    """A signed seed as the u64 with the same bits."""
    errors += int_range("seed", seed, -_I64_MAX - 1, _I64_MAX)
    return None if seed is None else seed % _U64


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _predicted_text(prediction: Prediction | None, errors: list[FieldError]) -> str:
    """The text that is predicted; empty where there is none, or where something is wrong with it."""
    if prediction is None:
        return ""
    content = prediction.content
    found = list(islice(_prediction_errors(prediction), MAX_ERRORS))
    errors += found
    if found or isinstance(content, str):
        return "" if found else str(content)
    return "".join(part.text for part in content if isinstance(part.text, str))


def _prediction_errors(prediction: Prediction) -> Iterator[FieldError]:
    content = prediction.content
    if prediction.type != "content":
        text = "prediction.type must be content, which is all that is predicted"
        yield FieldError(field="prediction.type", constraint="one_of", message=text)
    if isinstance(content, list):
        yield from part_errors("prediction.content", content)
    texts = (content,) if isinstance(content, str) else (part.text for part in content)
    n_chars = sum(len(text) for text in texts if isinstance(text, str))
    if n_chars > MAX_PREDICTION_CHARS:
        text = f"prediction.content must be at most {MAX_PREDICTION_CHARS} characters (got {n_chars})"
        yield FieldError(field="prediction.content", constraint=f"length(..={MAX_PREDICTION_CHARS})", message=text)


def _stream_errors(request: GeneratingRequest) -> Iterator[FieldError]:
    if request.stream_options is not None and not request.stream:
        text = "stream_options needs stream to be true; leave it out"
        yield FieldError(field="stream_options", constraint="needs(stream)", message=text)
