"""The 400 that tells every broken rule at once: `{"errors":[…]}` (docs/protocol.md 4).

Owns: its body and its exception. Refuses to know: the rules, HTTP. Pure; runs on the front's event loop.
"""

from typing import Annotated

import msgspec

from worker.errors import InvalidRequest
from worker.protocol.documented import doc
from worker.wire.messages import Violation

MAX_ERRORS = 64
"""Of one field. A body of 2 MiB has room for 700,000 stops; an answer about each would be 60 MB."""


class FieldError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One broken rule."""

    field: str
    constraint: Annotated[
        str, doc("The rule: `range(0.0..=2.0)`, `non_empty`, `max_count(4)`, `context_length(4096)`.")
    ]
    message: str
    value: Annotated[
        str | msgspec.UnsetType,
        doc("What was sent, as text; never a prompt, a stop, a grammar, a schema or a regular expression."),
    ] = msgspec.UNSET


class FieldsRefused(InvalidRequest):
    """A request whose fields break rules: a 400 with all of them at once (`encode_violations`)."""

    wording = "{}"

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors

    @property
    def reason(self) -> str:
        """Fields and kinds of rules: `max_tokens: range, stop: max_count`. A rule's number may be the client's."""
        broken = (f"{error.field}: {error.constraint.partition('(')[0]}" for error in self.errors)
        return ", ".join(dict.fromkeys(broken))


class FieldErrors(msgspec.Struct, frozen=True):
    """All broken rules of a request, in the order of its fields."""

    errors: Annotated[list[FieldError], msgspec.Meta(min_length=1)]


def field_error(violation: Violation) -> FieldError:
    """What only the engine could find out: context_length(N), max_tokens_in(K), what a constraint says."""
    return FieldError(field=violation.field, constraint=violation.constraint, message=violation.message)


def encode_violations(errors: list[FieldError]) -> bytes:
    """The body of the 400: `{"errors":[…]}`."""
    return msgspec.json.encode(FieldErrors(errors))
