"""The OpenAPI document, worker/server/web/page/openapi.json, with the schemas that the worker's structs have now; and
the page of its routes.

Paths, answers, headers, examples, and rules that concern several fields of a body, are written by hand in the document;
tests hold them to the routes and to the schemas.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from tools import CHECKOUT
from tools.markdown import table
from tools.reference.text import code, codes, page, sentence
from worker.apis.chat.message import ChatCompletion
from worker.apis.chat.request import ChatRequest
from worker.apis.completions.request import Completion, CompletionRequest
from worker.apis.core.bodies import (
    CancelBody,
    ErrorBody,
    FieldErrors,
    HealthBody,
    ModelCard,
    ModelList,
    ReadyBody,
    ShutdownBody,
)
from worker.apis.core.conversation import Message
from worker.apis.core.errors import ApiErrorBody
from worker.apis.core.events import Event
from worker.apis.core.fields import MAX_STOPS, SHARED
from worker.apis.core.rules import f32_text
from worker.apis.infill.request import Fill, InfillRequest
from worker.apis.infill.tokens import (
    DetokenizeRequest,
    RenderedBody,
    TextBody,
    TokenizeRequest,
    TokenizerInfo,
    TokensBody,
)
from worker.apis.messages.answer import AnswerMessage, TokenCount
from worker.apis.messages.errors import MessagesErrorBody
from worker.apis.messages.request import Block, GivenMessage, MessagesRequest, MessageTool
from worker.apis.pool.execute import CancelRequest, ExecuteRequest
from worker.apis.responses.items import InputItem
from worker.apis.responses.request import ResponsesRequest, ResponseTool
from worker.apis.responses.resource import InputTokens, ResponseResource
from worker.wire.encoding import bounds_of, doc

DOCUMENT: Final = CHECKOUT / "worker" / "server" / "web" / "page" / "openapi.json"
_DEPTH: Final = 6
"""The depth in the document to which each member has a line of its own."""
_STRUCT = "#/components/schemas/{name}"

Json = dict[str, Any]

_ANSWERS: tuple[type[msgspec.Struct], ...] = (
    *(HealthBody, ReadyBody, ErrorBody, FieldErrors, CancelBody, ShutdownBody, ModelList, ModelCard, ApiErrorBody),
    *(ChatCompletion, Completion, Fill, TokensBody, TextBody, TokenizerInfo, RenderedBody, ResponseResource),
    *(InputTokens, AnswerMessage, MessagesErrorBody, TokenCount),
)

_TOP_K = Annotated[
    int | None, doc("Keep this many of the most probable tokens; 0 and -1 are off.", minimum=-1, maximum=2**32 - 1)
]
_STOP = Annotated[
    str | list[Annotated[str, doc("1 to 100 bytes of UTF-8.", minLength=1, maxLength=100)]] | None,
    doc("Texts that end the answer and are not shown.", maxItems=MAX_STOPS, minLength=1, maxLength=100),
]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "string", "minLength": 1}
_SEVERAL = [{"type": "array", "items": each, "minItems": 1, "maxItems": 128} for each in (_TEXTS, _IDS)]
_PROMPT = Annotated[
    Any,
    doc(
        "A text, token ids, or a list of either: raw model input, no template is applied.",
        anyOf=[_TEXTS, _IDS, *_SEVERAL],
    ),
]
_MESSAGES = Annotated[
    Any,
    doc("The conversation.", type="array", items={"$ref": "#/components/schemas/Message"}, minItems=1),
]
_REQUESTS: dict[Any, Json] = {
    ChatRequest: {"messages": _MESSAGES, "stop": _STOP, "top_k": _TOP_K},
    CompletionRequest: {"prompt": _PROMPT, "stop": _STOP, "top_k": _TOP_K},
    InfillRequest: {"stop": _STOP, "top_k": _TOP_K},
    ResponsesRequest: {
        "input": Annotated[str | list[InputItem], doc("A text, or the items of the conversation.")],
        "top_k": _TOP_K,
        "tools": Annotated[list[ResponseTool] | None, doc("Functions, custom tools, and namespaces of these.")],
    },
    MessagesRequest: {
        "messages": Annotated[list[GivenMessage], doc("The conversation.")],
        "system": Annotated[str | list[Block] | None, doc("A text, or text blocks.")],
        "top_k": _TOP_K,
        "tools": Annotated[list[MessageTool] | None, doc("Tools of the client.")],
    },
}
"""Fields whose schema has more than the type that is decoded."""
_BY_HAND = ("ServerSentEvent", "ServerSentChunk")
"""Schemas of no struct."""
_NEEDED = ("messages", "prompt", "input")
"""Fields that a request must have."""


def document() -> Json:
    """The document as it should be. A schema keeps the keywords that msgspec does not write."""
    found: Json = msgspec.json.decode(DOCUMENT.read_bytes())
    old, made = found["components"]["schemas"], schemas()
    names = [name for name in {**old, **made} if name in made or name in _BY_HAND]
    found["components"]["schemas"] = {name: {**old.get(name, {}), **made.get(name, {})} for name in names}
    return found


def text() -> str:
    return "".join(_lines(document(), 0)) + "\n"


def schemas() -> Json:
    """The schema of each struct in a body."""
    (event,), made = msgspec.json.schema_components([Event], ref_template=_STRUCT)
    made["Event"] = {"oneOf": event["anyOf"], "discriminator": event["discriminator"]}
    made["ExecuteRequest"] = _execute_request()
    for plain in (Message, CancelRequest, TokenizeRequest, DetokenizeRequest):
        made |= _components(plain)
    for shape in _ANSWERS:
        components = _components(shape)
        if not shape.__struct_config__.omit_defaults:
            # A field with a default need not be read, but is always written.
            components[shape.__name__]["required"] = list(components[shape.__name__]["properties"])
        made |= components
    for shape, own in _REQUESTS.items():
        made |= _components(_with_shared(shape, own))
    made["Part"]["required"] = ["type", "text"]  # without a type the worker reports the type first
    return made


def _components(shape: Any) -> Json:
    _, found = msgspec.json.schema_components([shape], ref_template=_STRUCT)
    return found


def _with_shared(shape: type[msgspec.Struct], own: Json) -> type[msgspec.Struct]:
    """A generating request with the fields that it shares with `/execute`, all of which may be null."""
    fields = {field.name: (own.get(field.name, field.type), field.default) for field in msgspec.structs.fields(shape)}
    fields |= {name: (own.get(name, _or_null(kind)), None) for name, kind in SHARED.items()}
    fields |= {name: (kind, msgspec.NODEFAULT) for name, kind in own.items() if name in _NEEDED}
    return msgspec.defstruct(
        shape.__name__,
        [(name, kind, default) for name, (kind, default) in fields.items()],
        kw_only=True,
        namespace={"__doc__": shape.__doc__},
    )


def _or_null(kind: Any) -> Any:
    """The type or null. Bounds of the type itself stay with it, its description covers both."""
    if get_origin(kind) is not Annotated:
        return kind | None
    bare, *metas = get_args(kind)
    for meta in metas:
        if meta.description is None:
            bare = Annotated[bare, meta]
    return Annotated[(bare | None, *(meta for meta in metas if meta.description is not None))]


def _execute_request() -> Json:
    """The schema of an execute request: its properties in the order of the protocol, and the required ones."""
    schema = msgspec.json.schema(ExecuteRequest)["$defs"]["ExecuteRequest"]
    fields = msgspec.structs.fields(ExecuteRequest)
    properties = {field.name: schema["properties"][field.name] | bounds_of(field) for field in fields}
    properties = {name: _with_short_default(field) for name, field in properties.items()}
    return {"title": schema["title"], "type": "object", "properties": properties, "required": schema["required"]}


def _with_short_default(field: Json) -> Json:
    """The field with the fewest decimals in its default that identify the f32."""
    default = field.get("default")
    return field | {"default": float(f32_text(default))} if isinstance(default, float) else field


def _lines(value: Any, depth: int) -> Iterator[str]:
    """The JSON of a value, with a line for each member down to _DEPTH."""
    if depth == _DEPTH or not isinstance(value, dict | list) or not value:
        yield json.dumps(value, ensure_ascii=False)
        return
    indent = "\n" + " " * (depth + 1)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
    members = value.values() if isinstance(value, dict) else value
    yield "{" if isinstance(value, dict) else "["
    for at, (name, member) in enumerate(zip(names, members, strict=True)):
        yield f"{',' if at else ''}{indent}{name}"
        yield from _lines(member, depth + 1)
    yield f"{indent[:-1]}{'}' if isinstance(value, dict) else ']'}"


# ── the page of routes ───────────────────────────────────────────────────────────────────────────


_TITLES: Final[dict[str, str]] = {
    "state": "State",
    "jobs": "Jobs",
    "openai": "OpenAI, vLLM, llama-server and Anthropic",
    "life": "Shutdown",
}


def routes_page() -> str:
    found = document()
    tags = {tag["name"]: tag["description"] for tag in found["tags"]}
    blocks = [f"## {_TITLES[name]}\n\n{sentence(text)}\n\n{_routes(found, name)}" for name, text in tags.items()]
    return page("Routes", "routes", *blocks)


def _routes(document: Json, tag: str) -> str:
    rows = [
        (
            code(method.upper()),
            code(path),
            sentence(operation["summary"]),
            "open" if operation.get("security") == [] else "needed",
            codes([*operation["responses"]]),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "parameters" and tag in operation["tags"]
    ]
    return table(("method", "path", "what it does", "token", "statuses"), rows)
