"""The fields that the requests of `/v1` have in common, and how they become those of `/execute`: the known, the refused
and the ignored ones. A field that is null counts as absent.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from worker.apis.core.answers import NO_OPTIONS, StreamOptions
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import CONSTRAINTS, ConstrainedRequest, constraint_of
from worker.apis.core.conversation import Message, Part, check_parts, unread
from worker.apis.core.errors import NotAnObject, UnknownModel, respelled
from worker.apis.core.reading import Reading
from worker.apis.core.received import fault_of, without_mark
from worker.apis.core.request import Request, Terms
from worker.apis.core.rules import check_sampling, int_range
from worker.apis.core.thinking import Thinking
from worker.apis.core.tools import Offered, check_constraint
from worker.wire.encoding import doc
from worker.wire.jobs import U64_MAX, Prompt, SamplingParams, narrow
from worker.wire.prompts import Conversation

Members = dict[str, Any]
"""The members of a JSON object, as msgspec.json.decode gives them."""

MAX_CHOICES = 16
"""The largest `n`."""
MAX_STOPS = 16

MAX_PREDICTION_CHARS = 131_072
"""A prediction costs the engine as much work as a prompt, and it only serves speed."""

MAX_IGNORED = 32
"""The answer names at most this many ignored fields."""
_MAX_NAME_CHARS = 64
_IN_NAMES = "!#$&'*+.^_`|~-"
"""The characters other than letters and digits that a header accepts without quotes (RFC 9110, 5.6.2), without `%`,
which quotes."""

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
"""The fields that the worker does not support, and their values that ask for nothing, which are ignored."""

_OWN_READING = frozenset({"max_tokens", "seed", "stop", "logprobs", "json_schema"})
SHARED = {field.name: field.type for field in msgspec.structs.fields(SamplingParams) if field.name not in _OWN_READING}
"""The fields that have the same name, type and meaning in `/execute`, with their types."""

UNSUPPORTED = "is not supported by this worker; remove it"

ROUTED_FIELDS = (
    "no_stop_trim",
    "skip_special_tokens",
    "separate_reasoning",
    "stream_reasoning",
    "return_hidden_states",
)
"""The fields that vllm-router 0.1.17 adds to every request as false, independent of its client."""

_I64_MAX = 2**63 - 1


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the answer will probably repeat, e.g. a file that the answer edits. It makes the answer faster and
    does not change its tokens."""

    type: Annotated[str, doc("Only content is supported.", const="content")]
    content: Annotated[str | list[Part], doc("The text, or its parts in order.", maxLength=MAX_PREDICTION_CHARS)]


class GeneratingRequest(ConstrainedRequest, frozen=True, kw_only=True):
    """The fields that chat completions and completions have in common, in addition to `SHARED`."""

    model: Annotated[str | None, doc("Any name is accepted, unless `--strict-model` is set.")] = None
    max_tokens: Annotated[
        int | None,
        doc("Maximum tokens to generate; reduced to --max-tokens-out and to the space left in the context.", minimum=0),
    ] = None
    n: Annotated[int | None, doc("Number of answers to each prompt.", minimum=1, maximum=MAX_CHOICES)] = None
    seed: Annotated[
        int | None,
        doc("Makes the answer repeatable; a choice's index is added to it.", minimum=-_I64_MAX - 1, maximum=_I64_MAX),
    ] = None
    stop: Annotated[str | list[str] | None, doc("At most 16 texts that end the answer and are not shown.")] = None
    stream: Annotated[bool | None, doc("Stream the answer as server-sent events, chunk by chunk.")] = None
    stream_options: Annotated[StreamOptions | None, doc("No effect without `stream`.")] = None
    prediction: Prediction | None = None
    skip_special_tokens: Annotated[
        bool | None,
        doc("false shows control tokens by their names; reasoning and content are then not separated."),
    ] = None


Shape = TypeVar("Shape", bound=msgspec.Struct)


def read_object(body: bytes | bytearray) -> Members:
    """The members of a JSON object. If a name occurs twice, the last one counts. Raises: NotAnObject."""
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


def read_struct(members: Members, shape: type[Shape]) -> tuple[Shape, Problems]:
    """The fields of `shape`, all of which have defaults. Fields of another type are problems."""
    problems = Problems()
    given = ((field.name, members.get(field.name), field.type) for field in msgspec.structs.fields(shape))
    found = {name: problems.shaped(name, value, kind) for name, value, kind in given if value is not None}
    return shape(**{name: value for name, value in found.items() if value is not None}), problems


def idle_members(messages: object, kwargs: Mapping[str, Any] | None, terms: Terms) -> Iterator[str]:
    """Yield the places of a conversation's members, and of variables for its template, that have no effect."""
    yield from unread("messages", messages, Message)
    match messages:
        case [*before, _] if any(isinstance(one, dict) and one.get("prefix") for one in before):
            yield "messages.prefix"
    yield from (f"chat_template_kwargs.{name}" for name in kwargs or () if name not in terms.template_keys)


def _check_supported(problems: Problems, members: Members, shape: type[msgspec.Struct]) -> None:
    """No field may have an effect that this worker does not support at a route of this shape."""
    for name, idle in _UNSUPPORTED.items():
        value = members.get(name)
        if value is not None and value not in idle and name not in shape.__struct_fields__:
            problems.add(name, "unsupported", UNSUPPORTED)


def ignored_fields(
    members: Members,
    shape: type[msgspec.Struct],
    *,
    known: Collection[str] = (),
    unheeded: Collection[str] = (),
    further: Iterable[str] = (),
) -> tuple[str, ...]:
    """The members that have no effect, spelled for a header, at most MAX_IGNORED. Members of the request itself come
    first, then members inside its fields, then the names in `further`, which the caller has found. `unheeded` names
    fields of the shape that count as unknown in this request."""
    fields = {field.name: field.type for field in msgspec.structs.fields(shape) if field.name not in unheeded}
    given = {name: value for name, value in members.items() if value is not None}
    found = chain(
        (name for name in given if not (name in fields or name in known)),
        *(unread(name, value, fields[name]) for name, value in given.items() if name in fields),
        further,
    )
    return in_header(found)


def in_header(names: Iterable[str]) -> tuple[str, ...]:
    """The names in a header's spelling, at most MAX_IGNORED, each once."""
    most = _MAX_NAME_CHARS
    shown = (quote(name[:most], safe=_IN_NAMES)[:most] or '""' for name in names)
    return tuple(islice(dict.fromkeys(shown), MAX_IGNORED))


class Length(NamedTuple):
    """The length of an answer in tokens, as a route has it."""

    asked: int | None
    """The client's max_tokens, whatever its name there."""
    default: int | None = None
    """The length if the client asked for none; without it the limit applies."""
    least: int = 1


def read_request(
    problems: Problems,
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    *,
    prompts: Iterable[Prompt | None],
    length: Length,
    names: Mapping[str, str],
    logprobs: int | None = None,
    sent: type[msgspec.Struct] | None = None,
    offered: Offered | None = None,
    thinking: Thinking | None = None,
    unheeded: Collection[str] = (),
    further: Iterable[str] = (),
) -> Request:
    """Read the fields that all protocols have in common, and return the request without its answers.

    `sent`: the form of the body, if it is not that of `request`, which then has those fields that a chat has, too; of
    the members only the sampling fields of `/execute` are read. `names`: the client's names of a chat's fields.
    `unheeded` and `further` are those of ignored_fields.

    Raises: UnknownModel; FieldsRefused with the problems found so far and here.
    """
    offered, thinking = offered or Offered(), thinking or Thinking()
    if terms.is_strict and request.model not in (None, terms.model):
        raise UnknownModel(str(request.model), terms.model)
    if sent is None:
        _check_supported(problems, members, type(request))
    params, prediction, names = _params(
        problems, members, request, terms, length=length, logprobs=logprobs, names=names
    )
    check_constraint(offered.use, params, names)
    found, is_stream = tuple(prompt for prompt in prompts if prompt is not None), bool(request.stream)
    is_routed = all(members.get(name) is False for name in ROUTED_FIELDS)
    idle = {
        "stream_options": request.stream_options is not None and not is_stream,
        "prediction": bool(prediction) and not terms.takes_predictions,
    }
    further = (*(name for name, is_idle in idle.items() if is_idle), *further, *offered.unread, *thinking.ignored)
    unheeded = (*unheeded, *(ROUTED_FIELDS if is_routed else ()))
    shows_marks = request.skip_special_tokens is False and not is_routed
    return Request(
        prompts=found,
        params=replace(params, json_schema=None) if offered.use.choice == "required" else params,
        model=request.model,
        n=request.n or 1,
        is_stream=is_stream,
        options=(request.stream_options if is_stream else None) or NO_OPTIONS,
        prediction=prediction if terms.takes_predictions else "",
        asked_tokens=length.asked,
        marks="shown" if shows_marks else "split" if isinstance(found[0], Conversation) else "hidden",
        reading=_reading(terms, offered),
        tools=offered.use.for_engine(),
        reasoning_budget=thinking.budget,
        names=names,
        ignored=ignored_fields(members, sent or type(request), known=SHARED, unheeded=unheeded, further=further),
        ignored_tools=in_header(offered.skipped),
    )


def _reading(terms: Terms, offered: Offered) -> Reading:
    """The rules by which answers to a request with these tools are read."""
    is_divided, form = terms.can_limit_reasoning, terms.chat_format
    return Reading(form=form, use=offered.use, is_divided=is_divided, reads_fenced=terms.reads_fenced)


def _params(
    problems: Problems,
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    *,
    length: Length,
    logprobs: int | None,
    names: Mapping[str, str],
) -> tuple[SamplingParams, str, Mapping[str, str]]:
    """The parameters of the first answer, the predicted text, and the names with that of the constraint."""
    values = _shared(problems, members)
    int_range(problems, "seed", request.seed, -_I64_MAX - 1, _I64_MAX)
    # The u64 with the same bits.
    values["seed"] = None if request.seed is None else request.seed % (U64_MAX + 1)
    values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    broken = Problems()
    wanted = constraint_of(broken, request, values)
    problems.found += respelled(broken.found, names)
    values |= dict.fromkeys(CONSTRAINTS)
    if wanted is not None:
        values[wanted.field] = wanted.text
        names = {**names, wanted.field: names.get(wanted.place, wanted.place)}
    prediction = _predicted_text(problems, request.prediction)
    most = terms.max_tokens_out
    values["logprobs"] = logprobs
    values["max_tokens"] = (length.default or most) if length.asked is None else length.asked
    params = SamplingParams(**values)
    broken = Problems()
    int_range(broken, "max_tokens", length.asked, length.least)
    int_range(broken, "n", request.n, 1, MAX_CHOICES)
    check_sampling(broken, params, max(most, params.max_tokens), terms.vocab_size, max_stops=MAX_STOPS)
    problems.found += respelled(broken.found, names)
    problems.check()
    cut = replace(params, max_tokens=min(params.max_tokens, most), min_tokens=min(params.min_tokens, most))
    return cut, prediction, names


def _shared(problems: Problems, members: Members) -> Members:
    """The fields that are the same in `/execute`, with floats rounded to f32."""
    values: Members = {}
    for name, kind in SHARED.items():
        value = members.get(name)
        if name == "top_k" and value == -1:
            value = 0  # vLLM's off
        if value is not None and (found := problems.shaped(name, value, kind)) is not None:
            values[name] = narrow(found) if isinstance(found, float) else found
    if biases := values.get("logit_bias"):
        values["logit_bias"] = {token: narrow(bias) for token, bias in biases.items()}
    return values


def _predicted_text(problems: Problems, prediction: Prediction | None) -> str:
    """The predicted text; empty if there is none or if it breaks a rule."""
    if prediction is None:
        return ""
    own, content = Problems(), prediction.content
    if prediction.type != "content":
        own.add("prediction.type", "one_of", "must be content, the only supported type")
    if isinstance(content, list):
        check_parts(own, "prediction.content", content)
    texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part.text, str)]
    n_chars = sum(map(len, texts))
    if n_chars > MAX_PREDICTION_CHARS:
        text = f"must be at most {MAX_PREDICTION_CHARS} characters (got {n_chars})"
        own.add("prediction.content", f"length(..={MAX_PREDICTION_CHARS})", text)
    problems.take(own)
    return "" if own.found else "".join(texts)
