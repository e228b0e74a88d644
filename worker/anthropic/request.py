"""The body of `POST /v1/messages` and `/v1/messages/count_tokens`: a conversation, tools and fields.

Owns: the route's own fields. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import msgspec

from worker.anthropic.answer import MessageAnswer, TokenCount
from worker.anthropic.blocks import read_system, read_turns
from worker.anthropic.offered import Offered, ToolChoice, read_tools
from worker.openai.answers import Choice, Heading
from worker.openai.constraints import NamedSchema, ResponseFormat
from worker.openai.errors import refused_as_spelled
from worker.openai.fields import (
    SHARED,
    GeneratingRequest,
    Generation,
    Terms,
    conversation_of,
    ignored_fields,
    in_header,
    read_object,
    read_struct,
)
from worker.openai.foreign import read_foreign
from worker.openai.thinking import EFFORTS, Thinking, thinking_of, turned_off, turned_on, with_idle_named
from worker.openai.tools import constraint_errors, without_schema
from worker.openai.turns import Turns
from worker.protocol.bodies import FieldError, FieldsRefused
from worker.protocol.rules import int_range
from worker.wire.encoding import doc
from worker.wire.jobs import MarkUse
from worker.wire.prompts import Conversation
from worker.wire.questions import Tokenized

_KINDS = ("enabled", "adaptive", "disabled")
_DISPLAYS = ("summarized", "omitted")
_WITHOUT_EFFECT = frozenset({"metadata", "service_tier"})


class ThinkingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of reasoning, and whether it is shown."""

    type: Annotated[str, doc("adaptive leaves it to the model.", enum=list(_KINDS))]
    budget_tokens: Annotated[int | None, doc("The most tokens of reasoning, with `enabled`.", minimum=1)] = None
    display: Annotated[str | None, doc("omitted: the blocks have no text.", enum=[*_DISPLAYS, None])] = None


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effort of the model, and the form of the answer."""

    effort: Annotated[str | None, doc("How much the model reasons.", enum=[*EFFORTS, None])] = None
    format: Annotated[dict[str, Any] | None, doc("`json_schema` with `schema`.")] = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`. It may also have `seed` and the sampling fields of `/execute`. A field that is
    null counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    model: Annotated[str | None, doc("Any name is accepted, unless `--strict-model` is set.")] = None
    messages: Annotated[Any, doc("The conversation.")] = None
    system: Annotated[Any, doc("A text, or text blocks.")] = None
    max_tokens: Annotated[int | None, doc("Maximum tokens to generate. It must be sent.", minimum=1)] = None
    stop_sequences: Annotated[list[str] | None, doc("At most 16 texts that end the answer and are not shown.")] = None
    stream: Annotated[bool | None, doc("Stream the answer as server-sent events.")] = None
    tools: Annotated[Any, doc("Tools of the client.")] = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSettings | None = None
    output_config: OutputSettings | None = None
    output_format: Annotated[dict[str, Any] | None, doc("Older spelling of output_config.format.")] = None
    mcp_servers: Annotated[list[Any] | None, doc("Left out, and named in x-ignored-tools.")] = None
    seed: Annotated[int | None, doc("Makes the answer repeatable.")] = None
    metadata: Annotated[dict[str, Any] | None, doc("No effect.")] = None
    service_tier: Annotated[str | None, doc("No effect.")] = None


@dataclass(frozen=True, slots=True)
class MessageAsked:
    """A request that has passed every check which does not need its tokens."""

    prompt: Conversation
    generation: Generation
    shows_thinking: bool
    marks: ClassVar[MarkUse] = "split"

    def choices(self, heading: Heading) -> list[Choice]:
        """The one answer."""
        is_stream = self.generation.is_stream
        return [
            MessageAnswer(heading, self.generation.reading, shows_thinking=self.shows_thinking, is_stream=is_stream)
        ]


def read_messages(body: bytes | bytearray, terms: Terms) -> MessageAsked:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    return _read(body, terms, needs_max_tokens=True)


def read_counted(body: bytes | bytearray, terms: Terms) -> MessageAsked:
    """The request of which only the prompt's tokens are counted. Raises: see read_messages."""
    return _read(body, terms, needs_max_tokens=False)


def _read(body: bytes | bytearray, terms: Terms, *, needs_max_tokens: bool) -> MessageAsked:
    members = read_object(body)
    errors: list[FieldError] = []
    request = read_struct(MessagesRequest, members, errors)
    if needs_max_tokens and members.get("max_tokens") is None:
        text = "max_tokens is missing; send the most tokens that the answer may have"
        errors.append(FieldError(field="max_tokens", constraint="required", message=text))
    turns = Turns()
    left_out = read_system(request.system, turns, errors, keeps_bill=terms.keeps_billing_block)
    left_out += read_turns(request.messages, turns, errors)
    offered = read_tools(request.tools, request.tool_choice, errors)
    thinking = _thinking(request, terms, errors)
    prompt = _prompt(turns, thinking, offered, terms, errors)
    is_older = request.output_config is None or request.output_config.format is None
    place = "output_format" if is_older else "output_config.format"
    names = {"stop": "stop_sequences", "json_schema": place, "response_format": place}
    generation = read_foreign(
        members,
        GeneratingRequest(
            model=request.model,
            seed=request.seed,
            stream=request.stream,
            stop=request.stop_sequences,
            response_format=_response_format(request, place, errors),
        ),
        terms,
        errors,
        max_tokens=request.max_tokens,
        names=names,
    )
    if both := list(constraint_errors(offered.use, generation.fields, names)):
        raise FieldsRefused(both)
    assert prompt is not None  # or there were errors
    further = [*left_out, *offered.unread, *thinking.ignored]
    servers = [str(one.get("name") or "mcp") for one in request.mcp_servers or () if isinstance(one, dict)]
    made = replace(
        generation,
        names={**generation.names, "prompt": "messages"},
        ignored=ignored_fields(members, MessagesRequest, known=SHARED, unheeded=_WITHOUT_EFFECT, further=further),
        fields=without_schema(generation.fields, offered.use),
        reasoning_budget=thinking.budget,
        reading=terms.reading(offered.use),
        ignored_tools=in_header([*offered.skipped, *servers]),
        places=tuple(turns.places),
    )
    is_shown = request.thinking is None or request.thinking.display != "omitted"
    return MessageAsked(prompt, made, is_shown)


def _prompt(
    turns: Turns, thinking: Thinking, offered: Offered, terms: Terms, errors: list[FieldError]
) -> Conversation | None:
    """The conversation. If a rule is broken, add the errors and return None. If the last message is the assistant's,
    the answer continues it."""
    errors += _last_errors(turns)
    if errors:
        return None
    is_continued = turns.messages[-1]["role"] == "assistant"
    try:
        return conversation_of(
            turns.messages,
            thinking.variables,
            terms,
            add_generation_prompt=not is_continued,
            continue_final_message=is_continued,
            tools=offered.use.for_template(),
        )
    except FieldsRefused as refused:
        errors += refused_as_spelled(refused, {}, turns.places).errors
        return None


def _last_errors(turns: Turns) -> Iterator[FieldError]:
    """The error of a last message that no answer can follow."""
    if not turns.messages or turns.messages[-1]["role"] != "assistant":
        return
    last, place = turns.messages[-1], turns.places[-1]
    if last.get("tool_calls"):
        text = f"{place} has a tool_use without a tool_result; send the result in a user's message"
        yield FieldError(field=place, constraint="needs(tool_result)", message=text)
    elif not last["content"]:
        text = f"{place} is the last message and has no text to continue; remove it"
        yield FieldError(field=place, constraint="non_empty", message=text)


def _thinking(request: MessagesRequest, terms: Terms, errors: list[FieldError]) -> Thinking:
    settings = request.thinking
    effort = None if request.output_config is None else request.output_config.effort
    budget = None
    if settings is not None:
        if settings.type not in _KINDS:
            text = f"thinking.type must be one of {', '.join(_KINDS)}"
            errors.append(FieldError(field="thinking.type", constraint="one_of", message=text))
        if settings.display not in (None, *_DISPLAYS):
            text = f"thinking.display must be one of {', '.join(_DISPLAYS)}"
            errors.append(FieldError(field="thinking.display", constraint="one_of", message=text))
        errors += int_range("thinking.budget_tokens", settings.budget_tokens, 1)
        if settings.type == "enabled":
            budget = settings.budget_tokens
            if budget is None:
                text = "thinking.budget_tokens is missing; send the most tokens of reasoning, or type adaptive"
                errors.append(FieldError(field="thinking.budget_tokens", constraint="required", message=text))
        elif settings.budget_tokens is not None:
            text = "thinking.budget_tokens needs type enabled; remove it"
            errors.append(FieldError(field="thinking.budget_tokens", constraint="needs(enabled)", message=text))
    wanted = thinking_of("output_config.effort", effort, terms.template_keys, errors, budget=budget)
    if settings is not None:
        is_off = settings.type == "disabled"
        wanted = turned_off(terms.template_keys) if is_off else turned_on(wanted, terms.template_keys)
    wishes = {"thinking": settings, "output_config.effort": effort}
    return with_idle_named(
        wanted,
        [name for name, given in wishes.items() if given is not None],
        [] if budget is None else ["thinking.budget_tokens"],
        can_limit=terms.can_limit_reasoning,
    )


def _response_format(request: MessagesRequest, place: str, errors: list[FieldError]) -> ResponseFormat | None:
    """The form of the answer in the spelling of chats. `place`: its place in the request."""
    own = None if request.output_config is None else request.output_config.format
    form = request.output_format if own is None else own
    if form is None:
        return None
    if form.get("type") != "json_schema":
        text = f"{place}.type must be json_schema"
        errors.append(FieldError(field=f"{place}.type", constraint="one_of", message=text))
    if not isinstance(form.get("schema"), dict):
        text = f"{place}.schema is missing; send the schema of the answer"
        errors.append(FieldError(field=f"{place}.schema", constraint="required", message=text))
        return None
    return ResponseFormat(type="json_schema", json_schema=NamedSchema(schema=form["schema"]))


def token_count(answer: Tokenized) -> TokenCount:
    return TokenCount(input_tokens=len(answer.tokens))
