"""`POST /tokenize`, `/detokenize`, the render routes, and `GET /tokenizer_info`, as in llama-server and vLLM."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from worker.apis.core.conversation import read_conversation
from worker.apis.core.fields import UNSUPPORTED, idle_members, ignored_fields, read_object, read_struct
from worker.apis.core.request import Terms
from worker.wire.encoding import Count, doc
from worker.wire.jobs import Prompt, TokenId


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /tokenize`: one of `prompt` (vLLM's), `content` (llama-server's) and `messages`."""

    model: str | None = None
    prompt: Annotated[str | None, doc("A text.")] = None
    add_special_tokens: Annotated[bool | None, doc("Put BOS first if the model wants it.")] = None
    content: Annotated[str | None, doc("A text.")] = None
    add_special: Annotated[bool | None, doc("Same as add_special_tokens, but off by default.")] = None
    parse_special: Annotated[bool | None, doc("Parse names of special tokens as these tokens; on by default.")] = None
    messages: Annotated[Any, doc("A conversation.")] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: Annotated[bool | None, doc("Only false is supported.", const=False)] = None
    with_pieces: Annotated[bool | None, doc("Only false is supported.", const=False)] = None


class TokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text."""

    tokens: tuple[TokenId, ...]
    count: Count
    max_model_len: Annotated[Count, doc("Most tokens that one job may use.")]


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[int] | None, doc("Token ids.")] = None


class TextBody(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens, under both servers' names. A special token becomes its name."""

    content: str
    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that programs need to count tokens."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: Annotated[str | None, doc("The Jinja template that is in use.")]


class RenderedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt that a request becomes."""

    token_ids: tuple[TokenId, ...]
    prompt: Annotated[str, doc("The prompt's text; for a conversation the output of the chat template.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAsked:
    """A request for the tokens of a text or a conversation."""

    prompt: Prompt
    field: str
    """The name of the prompt's field in the request."""
    add_special: bool = True
    parse_special: bool = True
    ignored: tuple[str, ...] = ()


def read_tokenize(body: bytes | bytearray, terms: Terms) -> TextAsked:
    """Raises: NotAnObject, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, TokenizeRequest)
    given = [name for name in ("prompt", "content", "messages") if members.get(name) is not None]
    if len(given) != 1 and not problems.found:
        problems.add("prompt", "required", "exactly one of prompt, content and messages", subject="send")
    for name in ("return_token_strs", "with_pieces"):
        if getattr(request, name):
            problems.add(name, "unsupported", UNSUPPORTED)
    problems.check()
    (field,), most = given, terms.max_text_chars
    if field != "messages":
        text = str(members[field])
        if len(text) > most:
            problems.add(field, f"length(..={most})", f"must be at most {most} characters (got {len(text)})")
            problems.check()
        return TextAsked(
            prompt=text,
            field=field,
            # Each server has its own default for BOS.
            add_special=bool(request.add_special) if field == "content" else request.add_special_tokens is not False,
            parse_special=request.parse_special is not False,
            ignored=ignored_fields(members, TokenizeRequest),
        )
    prompt = read_conversation(
        problems,
        members["messages"],
        template_kwargs=request.chat_template_kwargs,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        max_chars=most,
    )
    problems.check()
    assert prompt is not None  # or there were problems
    idle = idle_members(members["messages"], request.chat_template_kwargs, terms)
    return TextAsked(prompt=prompt, field="messages", ignored=ignored_fields(members, TokenizeRequest, further=idle))


def read_detokenize(body: bytes | bytearray, terms: Terms) -> tuple[tuple[TokenId, ...], tuple[str, ...]]:
    """The tokens, and the members without effect. Raises: NotAnObject, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, DetokenizeRequest)
    most, n_vocab = terms.max_text_chars, terms.vocab_size
    problems.check()
    if request.tokens is None:
        problems.add("tokens", "required", "is missing")
    elif len(request.tokens) > most:
        problems.add("tokens", f"max_count({most})", f"must be at most {most} (got {len(request.tokens)})")
    elif not all(0 <= token < n_vocab for token in request.tokens):
        problems.add("tokens", f"vocabulary({n_vocab})", f"must be token ids below {n_vocab}")
    problems.check()
    return tuple(map(TokenId, request.tokens or ())), ignored_fields(members, DetokenizeRequest)
