"""Prompts that are more than a text or tokens, and the tools that an answer may call, as the engine gets them in a
job's Submit frame."""

import msgspec


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A conversation that the model's chat template turns into a prompt. The front has checked its shape; its meaning
    is not checked."""

    messages: str
    """A JSON array of objects, each with a `role`."""
    tools: str | None = None
    """A JSON array."""
    template_kwargs: str = "{}"
    """A JSON object with variables for the template besides the messages."""
    add_generation_prompt: bool = True
    """True if the text ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """True if the last message is the start of the answer. It excludes add_generation_prompt."""


class Infill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text with a gap, for models with fill-in-the-middle tokens. Names of special tokens in it are letters."""

    prefix: str
    suffix: str
    begun: str = ""
    """The beginning of the text in the gap, which the prefix continues into."""
    files: tuple[tuple[str, str], ...] | None = None
    """(name, text) of further files, which go before the text in the form of a repository; None leaves out this form.
    """


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the answer may call."""

    name: str
    place: int
    """Its index in the request's list of tools, which errors name."""
    parameters: str = "{}"
    """The JSON schema of its arguments, as JSON text."""
    is_text: bool = False
    """True if the argument is one text and `parameters` says nothing. It is written as the argument `input`."""
    grammar: str | None = None
    """The grammar of the text, in Lark; None allows any text."""
    regex: str | None = None
    """The regular expression of the text, instead of a grammar."""
    is_strict: bool = False
    """True if the arguments of each call must satisfy the schema."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that an answer may have. They are written in the model's form (ModelFacts.chat_format)."""

    tools: tuple[OfferedTool, ...]
    """The tools, at least one. If one tool must be called, it is the only one here."""
    is_required: bool = False
    """True if the answer is calls and nothing else, after the reasoning. Otherwise a call is held to its form once it
    has begun."""
    is_parallel: bool = True
    """False if the answer has one call at most."""
