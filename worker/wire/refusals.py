"""The rules that only the engine can check, and the frame that refuses a job which breaks them."""

from typing import Literal

import msgspec

from worker.wire.jobs import Frame, JobKey


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of a prompt with too many tokens."""

    n_tokens: int
    most: int
    """The context's length, or --max-tokens-in."""


class Violation(msgspec.Struct, frozen=True, array_like=True):
    """A rule that the request breaks and only the engine can check: context_length(N), max_tokens_in(K), or one of
    constraints."""

    field: Literal[
        "prompt",
        "messages",
        "tokens",
        "grammar",
        "json_schema",
        "regex",
        "prediction",
        "tools",
    ]
    constraint: str
    message: str
    overflow: Overflow | None = None
    """The numbers, if the rule is context_length(N) or max_tokens_in(K)."""


class Refused(Frame, frozen=True, kw_only=True):
    """The job is answered with a 400 that names all its violations, at least one."""

    job: JobKey
    violations: tuple[Violation, ...]
