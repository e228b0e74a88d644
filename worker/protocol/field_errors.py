"""The 400 that tells every broken rule at once: `{"errors":[…]}` (docs/protocol.md 4).

Owns: its body and its exception. Refuses to know: the rules, HTTP. Pure; runs on the front's event loop.
"""

import msgspec

from worker.engine.contract import Violation
from worker.errors import InvalidRequest

MAX_ERRORS = 64
"""Of one field. A body of 2 MiB has room for 700,000 stops; an answer about each would be 60 MB."""


class FieldError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One broken rule. `value` is what was sent, as text; never a prompt's, a stop's, a grammar's or a schema's."""

    field: str
    constraint: str
    message: str
    value: str | None = None


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


class _Errors(msgspec.Struct, frozen=True):
    errors: list[FieldError]


def field_error(violation: Violation) -> FieldError:
    """What only the engine could find out: context_length(N), max_tokens_in(K), a grammar's syntax."""
    return FieldError(field=violation.field, constraint=violation.constraint, message=violation.message)


def encode_violations(errors: list[FieldError]) -> bytes:
    """The body of the 400: `{"errors":[…]}`."""
    return msgspec.json.encode(_Errors(errors))
