"""The tools that an answer may call, as the engine gets them in a job's Submit frame.

This module owns their types; apis/core/tools.py makes them of a request, and constraints/calls.py holds calls to them.
"""

import msgspec


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
