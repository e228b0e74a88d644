"""`POST /v1/chat/completions`: a request becomes a conversation and its fields, jobs become messages or chunks.

Owns: the route's own fields and shapes. Refuses to know: the forms of messages (protocol/conversation.py), templates,
HTTP frameworks. Pure; runs on the front's event loop, reading on a thread for large bodies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from worker.openai.answers import (
    Allowance,
    Choice,
    CollectedChoice,
    FinishReason,
    Heading,
    StreamedChoice,
    Usage,
    array,
    encode,
    finite,
    json_array,
    usage_of,
)
from worker.openai.fields import (
    MAX_TOP_LOGPROBS,
    GeneratingRequest,
    Generation,
    StreamOptions,
    Terms,
    conversation_of,
    read_generation,
    read_object,
    read_struct,
)
from worker.openai.listed import ListedTokens
from worker.protocol.bodies import Count, FieldError, FieldsRefused, doc
from worker.protocol.conversation import unread_members
from worker.protocol.rules import int_range
from worker.wire.jobs import Conversation, Logprob, MarkUse

OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"
_EFFORT = "reasoning_effort"

# ── requests ─────────────────────────────────────────────────────────────────────────────────────


class ChatRequest(GeneratingRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`. It may also have the sampling fields of `/execute`. A field that is null
    counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    messages: Annotated[Any, doc("The conversation.")] = None
    max_completion_tokens: Annotated[int | None, doc("Alias of max_tokens.", minimum=1)] = None
    logprobs: Annotated[bool | None, doc("Report the log-probabilities of the answer's tokens.")] = None
    top_logprobs: Annotated[
        int | None, doc("Also report this many of the most probable tokens. Only with logprobs.", minimum=0, maximum=20)
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, doc("Not supported yet, except with tool_choice none.")] = None
    tool_choice: Annotated[str | dict[str, Any] | None, doc("none; auto is accepted only without tools.")] = None
    reasoning_effort: Annotated[str | None, doc("Passed to the chat template as a variable of this name.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("Variables for the chat template.")] = None
    add_generation_prompt: Annotated[bool | None, doc("Answer with the assistant's next message.")] = None
    continue_final_message: Annotated[bool | None, doc("Continue the last message instead.")] = None
    prompt_logprobs: Annotated[int | None, doc("Only /v1/completions supports it.", const=None)] = None


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """A chat request that has passed every check which does not need its tokens."""

    prompt: Conversation
    generation: Generation
    wants_logprobs: bool
    marks: ClassVar[MarkUse] = "split"

    def choices(self, heading: Heading) -> list[Choice]:
        """A choice for each of the n answers, in order."""
        allowance = Allowance()
        indexes = range(self.generation.n)
        if self.generation.is_stream:
            options = self.generation.options
            return [
                StreamedMessage(i, allowance, heading, options, wants_logprobs=self.wants_logprobs) for i in indexes
            ]
        return [CollectedMessage(i, allowance, wants_logprobs=self.wants_logprobs) for i in indexes]

    def body(self, heading: Heading, choices: Sequence[Choice]) -> bytes:
        """The whole answer, once every choice has ended."""
        return encode(
            ChatCompletion(
                id=heading.id,
                created=heading.created,
                model=heading.model,
                system_fingerprint=heading.system_fingerprint,
                choices=[choice.made() for choice in choices if isinstance(choice, CollectedMessage)],
                usage=usage_of(choices, self.generation.n),
            )
        )


def read_chat(body: bytes | bytearray, terms: Terms) -> ChatAsked:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    errors: list[FieldError] = []
    request = read_struct(ChatRequest, members, errors)
    errors += _contradictions(request)
    prompt = _prompt(request, terms, errors)
    tokens_field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    generation = read_generation(
        members,
        request,
        terms,
        errors,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        max_tokens=request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens,
        names={
            "prompt": "messages",
            "logprobs": "top_logprobs",
            "max_tokens": tokens_field,
        },
        ignored=_ignored(request, terms),
    )
    assert prompt is not None  # or there were errors
    return ChatAsked(prompt, generation, bool(request.logprobs))


def _prompt(request: ChatRequest, terms: Terms, errors: list[FieldError]) -> Conversation | None:
    """The conversation. If it breaks a rule, add the errors and return None."""
    if request.messages is None:
        errors.append(FieldError(field="messages", constraint="required", message="messages is missing"))
        return None
    try:
        return conversation_of(
            request.messages,
            _template_kwargs(request, terms),
            terms,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        )
    except FieldsRefused as refused:
        errors += refused.errors
        return None


def _template_kwargs(request: ChatRequest, terms: Terms) -> Mapping[str, Any] | None:
    """The variables for the template; chat_template_kwargs overrides reasoning_effort."""
    if request.reasoning_effort is None or _EFFORT not in terms.template_keys:
        return request.chat_template_kwargs
    return {_EFFORT: request.reasoning_effort} | (request.chat_template_kwargs or {})


def _ignored(request: ChatRequest, terms: Terms) -> Iterator[str]:
    """Yield the fields that have no effect: agents send reasoning_effort to every model, and few templates read it."""
    yield from unread_members(request.messages)
    if request.reasoning_effort is not None and _EFFORT not in terms.template_keys:
        yield _EFFORT


def _contradictions(request: ChatRequest) -> Iterator[FieldError]:
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        text = "max_tokens and max_completion_tokens set the same limit but differ; send one of them"
        yield FieldError(field="max_tokens", constraint="exclusive(max_completion_tokens)", message=text)
    if request.top_logprobs is not None and not request.logprobs:
        # With logprobs the rule that /execute has too reads the number.
        yield from int_range("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)
        text = "top_logprobs needs logprobs to be true"
        yield FieldError(field="top_logprobs", constraint="needs(logprobs)", message=text)
    if request.prompt_logprobs is not None:
        text = "prompt_logprobs is supported by /v1/completions only; remove it"
        yield FieldError(field="prompt_logprobs", constraint="unsupported", message=text)
    yield from _tool_errors(request)


def _tool_errors(request: ChatRequest) -> Iterator[FieldError]:
    if request.tools and request.tool_choice != "none":
        text = "this worker cannot call tools; remove tools, or send tool_choice none"
        yield FieldError(field="tools", constraint="unsupported", message=text)
    elif not request.tools and request.tool_choice not in (None, "none", "auto"):
        text = "tool_choice needs tools; remove it"
        yield FieldError(field="tool_choice", constraint="needs(tools)", message=text)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token, and the natural logarithm of its probability under the softmax of the raw logits."""

    token: Annotated[str, doc("Text of the token; U+FFFD stands for bytes that are not a whole character.")]
    logprob: float
    bytes: tuple[int, ...]


class DrawnLogprob(TokenLogprob, frozen=True, kw_only=True):
    """A token of the answer."""

    top_logprobs: tuple[TokenLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probabilities of the tokens whose text is shown. End tokens and the text that a stop hides are left
    out."""

    content: Annotated[msgspec.Raw, json_array({"type": "object"})]
    refusal: None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    reasoning_content: Annotated[
        str | msgspec.UnsetType, doc("The model's reasoning, if control tokens separate it from the answer.")
    ] = msgspec.UNSET
    reasoning: Annotated[str | msgspec.UnsetType, doc("Alias of reasoning_content.")] = msgspec.UNSET
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of n answers."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: Annotated[Count, doc("Unix time in seconds.")]
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class CollectedMessage(CollectedChoice):
    """A message that is sent when it is complete."""

    def __init__(self, index: int, allowance: Allowance, *, wants_logprobs: bool) -> None:
        super().__init__(index, allowance)
        self._wants_logprobs = wants_logprobs
        self._tokens = ListedTokens()
        self._logprobs: list[bytes] = []
        self._thoughts: list[str] = []

    def token(
        self,
        text: str,
        index: int,
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,
        *,
        is_reasoning: bool = False,
    ) -> bytes:
        if is_reasoning:
            self._thoughts.append(text)
            self._hold(len(text))
            return b""
        super().token(text, index, logprobs, n_sampled)
        self._list(self._tokens.show(len(text)))
        return b""

    def rewind(self) -> None:
        super().rewind()
        self._tokens = ListedTokens()
        self._logprobs.clear()
        self._thoughts.clear()

    def made(self) -> ChatChoice:
        assert self.finish_reason is not None
        thoughts = "".join(self._thoughts) or msgspec.UNSET
        return ChatChoice(
            index=self.index,
            message=ChatMessage(content=self._text, reasoning_content=thoughts, reasoning=thoughts),
            logprobs=ChatLogprobs(content=array(self._logprobs)) if self._wants_logprobs else None,
            finish_reason=self.finish_reason,
        )

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        super()._ended(logprobs)
        self._list(self._tokens.finish(is_cut_off=self.finish_reason == "length"))
        return b""

    def _keep(self, logprobs: Sequence[Logprob]) -> None:
        self._tokens.add(logprobs)

    def _list(self, shown: Sequence[Logprob]) -> None:
        for item in _encoded(shown):
            self._logprobs.append(item)
            self._hold(len(item))


class StreamedMessage(StreamedChoice):
    """A message that is sent as it is generated: the role, the text, the reason why it ended."""

    kind = CHUNK_OBJECT

    def __init__(
        self, index: int, allowance: Allowance, heading: Heading, options: StreamOptions, *, wants_logprobs: bool
    ) -> None:
        super().__init__(index, allowance, heading, options)
        self._wants_logprobs = wants_logprobs
        self._tokens = ListedTokens()

    def token(
        self,
        text: str,
        index: int,  # noqa: ARG002
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,
        *,
        is_reasoning: bool = False,
    ) -> bytes:
        if is_reasoning:
            thought = encode(text)
            delta = b'"delta":{"reasoning_content":%b,"reasoning":%b}' % (thought, thought)
            return self._chunk(delta + b',"logprobs":null,"finish_reason":null', n_sampled)
        self._tokens.add(logprobs)
        entries = self._entries(self._tokens.show(len(text))) if self._wants_logprobs else b"null"
        delta = b'"delta":{"content":%b},"logprobs":%b,"finish_reason":null' % (encode(text), entries)
        return self._chunk(delta, n_sampled)

    def _begun(self) -> bytes:
        members = b'"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        return self._chunk(members, 0)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        self._tokens.add(logprobs)
        shown = self._tokens.finish(is_cut_off=self.finish_reason == "length")
        rest = self._entries(shown) if shown else b"null"
        reason = encode(self.finish_reason)
        return self._chunk(b'"delta":{},"logprobs":%b,"finish_reason":%b' % (rest, reason), self.n_drawn)

    def _entries(self, logprobs: Sequence[Logprob]) -> bytes:
        return encode(ChatLogprobs(content=array(_encoded(logprobs))))


def _encoded(logprobs: Sequence[Logprob]) -> list[bytes]:
    return [encode(_drawn(entry)) for entry in logprobs]


def _drawn(entry: Logprob) -> DrawnLogprob:
    top = tuple(
        TokenLogprob(token=other.text, logprob=finite(other.logprob), bytes=tuple(other.piece)) for other in entry.top
    )
    token = entry.token
    return DrawnLogprob(token=token.text, logprob=finite(token.logprob), bytes=tuple(token.piece), top_logprobs=top)
