"""The chunks of a stream at `/v1`, of chats and completions: the fields that are looked at. Pure."""

import msgspec

DONE = b"[DONE]"
"""The data of the last event."""


class Error(msgspec.Struct, frozen=True):
    message: str = "an error without words"


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta = Delta()
    """The text of a chat."""
    text: str = ""
    """The text of a completion."""
    finish_reason: str | None = None


class Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: Details = Details()


class Chunk(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: Error | None = None
