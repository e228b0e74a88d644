"""The fields of a request in OpenAI's shape, and how they become those of `/execute`.

Owns: the known, the refused and the ignored fields; their types; the common part of the two generating routes. Ranges
are apis/core/rules.py's. A field that is null counts as absent. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from worker.apis.core.bodies import FieldsRefused, Problems
from worker.apis.core.constraint_fields import ConstrainedRequest, constraint_of
from worker.apis.core.conversation import Part, check_parts
from worker.apis.core.errors import NotAnObject, UnknownModel, refused_as_spelled, respelled
from worker.apis.core.json_bytes import fault_of, without_mark
from worker.apis.core.reading import PLAIN, Reading
from worker.apis.core.rules import check_sampling, int_range
from worker.apis.core.thinking import Thinking
from worker.apis.core.tools import Offered, ToolUse, check_constraint, without_schema
from worker.apis.core.unread import unread
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.encoding import doc
from worker.wire.jobs import SamplingParams, narrow

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
_U64 = 2**64


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a stream other than the text."""

    include_usage: Annotated[bool | None, doc("Send the usage in a last chunk without choices.")] = None
    continuous_usage_stats: Annotated[bool | None, doc("Send the usage so far in every chunk.")] = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limits that follow from this worker's settings and its model."""

    model: str
    """The served model's name."""
    is_strict: bool
    """True if a request must not name another model."""
    max_tokens_out: int
    """The most tokens of an answer, independent of its prompt. A larger max_tokens is cut to it."""
    max_text_chars: int
    """The space in a frame to the engine, not --max-prompt-chars. The context is the limit that clients notice."""
    n_ctx: int
    """The tokens that one job may use."""
    vocab_size: int
    template_keys: frozenset[str]
    """The variables that the model's chat template reads, besides the messages."""
    can_infill: bool = False
    """True if the model has fill-in-the-middle tokens."""
    takes_predictions: bool = True
    """True if the engine drafts from texts."""
    chat_format: ChatFormat = HERMES
    """The notation of the model's calls."""
    can_limit_reasoning: bool = False
    """True if the engine keeps a limit of the reasoning."""
    reads_fenced: bool = True
    """True if a fenced JSON object that is a call of an offered tool is read as one."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """The members of a chat's message that have the reasoning."""
    keeps_billing_block: bool = False
    """True if Claude Code's billing block reaches the prompt."""

    def reading(self, use: ToolUse) -> Reading:
        """The rules by which answers to a request with these tools are read."""
        is_divided = self.can_limit_reasoning
        return Reading(form=self.chat_format, use=use, is_divided=is_divided, reads_fenced=self.reads_fenced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The fields of a request that do not depend on its prompt."""

    fields: SamplingParams
    """The fields of the first choice."""
    model: str | None
    """The client's name for the model."""
    n: int
    is_stream: bool
    options: StreamOptions
    names: Mapping[str, str]
    """The client's spelling of fields that have other names in `/execute`."""
    ignored: tuple[str, ...]
    """The members that have no effect."""
    prediction: str = ""
    """The text for Submit.prediction."""
    asked_tokens: int | None
    """The max_tokens that the client sent, or None. `fields` has it cut to the limit."""
    shows_marks: bool = False
    """True if control tokens are shown by their names."""
    reading: Reading = PLAIN
    """The rules by which the answers are read."""
    reasoning_budget: int | None = None
    """The most tokens of reasoning; None is no limit."""
    ignored_tools: tuple[str, ...] = ()
    """The names of the tools that the worker does not have, spelled for a header."""
    places: tuple[str, ...] = ()
    """The place of each message in the request, if the request has them in another form."""

    def cut_to(self, room: int) -> int | None:
        """The length in tokens to which the answer is cut, if the request asks for more than fits in `room`; else
        None."""
        limit = min(self.fields.max_tokens, room)
        return limit if self.asked_tokens is not None and self.asked_tokens > limit else None

    def choice(self, index: int) -> SamplingParams:
        """The fields of one of n answers to a prompt."""
        seed = self.fields.seed
        return msgspec.structs.replace(self.fields, seed=None if seed is None else (seed + index) % _U64)


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


def read_struct(problems: Problems, shape: type[Shape], members: Members) -> Shape:
    """The fields of `shape`, all of which have defaults. Fields of another type are problems."""
    given = ((field.name, members.get(field.name), field.type) for field in msgspec.structs.fields(shape))
    found = {name: problems.shaped(name, value, kind) for name, value, kind in given if value is not None}
    return shape(**{name: value for name, value in found.items() if value is not None})


def idle_variables(kwargs: Mapping[str, Any] | None, terms: Terms) -> Iterator[str]:
    """Yield the places of the variables that the model's template does not read."""
    return (f"chat_template_kwargs.{name}" for name in kwargs or () if name not in terms.template_keys)


def check_model(model: str | None, terms: Terms) -> None:
    """Raises: UnknownModel."""
    if terms.is_strict and model is not None and model != terms.model:
        raise UnknownModel(model, terms.model)


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
    return tuple(islice(dict.fromkeys(map(_shown, names)), MAX_IGNORED))


def _shown(name: str) -> str:
    """The name in a header's spelling: other characters are quoted as in a URL, and a long name is cut."""
    return quote(name[:_MAX_NAME_CHARS], safe=_IN_NAMES)[:_MAX_NAME_CHARS] or '""'


def read_generation(
    problems: Problems,
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    default_tokens: int | None = None,
    min_max_tokens: int = 1,
    names: Mapping[str, str],
    ignored: Iterable[str] = (),
) -> Generation:
    """Read the fields of a request. The route has read `max_tokens` and `logprobs`, which it spells in its own way. If
    `max_tokens` is None, `default_tokens` or else the limit applies. `min_max_tokens` is the smallest max_tokens that
    is accepted. `ignored` are further names that the route has found.

    Raises: UnknownModel; FieldsRefused with the problems found so far and here.
    """
    check_model(request.model, terms)
    _check_supported(problems, members, type(request))
    values = _shared(problems, members)
    int_range(problems, "seed", request.seed, -_I64_MAX - 1, _I64_MAX)
    # The u64 with the same bits.
    values["seed"] = None if request.seed is None else request.seed % _U64
    values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    wanted = constraint_of(problems, request, values)
    spelled = {**names, **wanted.names}
    is_routed = _is_routed(members)
    prediction = _predicted_text(problems, request.prediction)
    if prediction and not terms.takes_predictions:
        prediction, ignored = "", chain(("prediction",), ignored)
    if request.stream_options is not None and not request.stream:
        ignored = chain(("stream_options",), ignored)
    values |= {"logprobs": logprobs, **wanted.fields}
    most = terms.max_tokens_out
    values["max_tokens"] = (default_tokens or most) if max_tokens is None else max_tokens
    fields = SamplingParams(**values)
    broken = Problems()
    int_range(broken, "max_tokens", max_tokens, min_max_tokens)
    int_range(broken, "n", request.n, 1, MAX_CHOICES)
    check_sampling(broken, fields, max(most, fields.max_tokens), terms.vocab_size, max_stops=MAX_STOPS)
    problems.found += respelled(broken.found, spelled)
    problems.check()
    return Generation(
        fields=msgspec.structs.replace(
            fields, max_tokens=min(fields.max_tokens, most), min_tokens=min(fields.min_tokens, most)
        ),
        model=request.model,
        n=request.n or 1,
        is_stream=bool(request.stream),
        options=(request.stream_options if request.stream else None) or StreamOptions(),
        names=spelled,
        ignored=ignored_fields(
            members, type(request), known=SHARED, unheeded=ROUTED_FIELDS if is_routed else (), further=ignored
        ),
        prediction=prediction,
        asked_tokens=max_tokens,
        shows_marks=request.skip_special_tokens is False and not is_routed,
    )


def read_foreign(
    problems: Problems,
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    *,
    max_tokens: int | None,
    names: Mapping[str, str],
) -> Generation:
    """Read the fields of a request in another protocol's form, of which `request` has those that a chat has, too. Of
    the members only the sampling fields of `/execute` are read. `names`: the client's names of a chat's fields.

    Raises: see read_generation.
    """
    own = {name: value for name, value in members.items() if name in SHARED}
    try:
        read = read_generation(problems, own, request, terms, logprobs=None, max_tokens=max_tokens, names=names)
    except FieldsRefused as refused:
        raise refused_as_spelled(refused, names) from None
    return replace(read, names={**read.names, **names})


def conversing(generation: Generation, offered: Offered, thinking: Thinking, terms: Terms) -> Generation:
    """The same with the tools and the reasoning of a conversation. Raises: FieldsRefused."""
    check_constraint(offered.use, generation.fields, generation.names)
    return replace(
        generation,
        fields=without_schema(generation.fields, offered.use),
        reasoning_budget=thinking.budget,
        reading=terms.reading(offered.use),
        ignored_tools=in_header(offered.skipped),
    )


def _is_routed(members: Members) -> bool:
    """True if a router has added its own fields with their default values."""
    return all(members.get(name) is False for name in ROUTED_FIELDS)


def _shared(problems: Problems, members: Members) -> Members:
    """The fields that are the same in `/execute`, with floats rounded to f32."""
    values: Members = {}
    for name, kind in SHARED.items():
        value = members.get(name)
        if name == "top_k" and value == -1:
            value = 0  # vLLM's off
        if value is not None and (found := problems.shaped(name, value, kind)) is not None:
            values[name] = found
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = narrow(value)
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
