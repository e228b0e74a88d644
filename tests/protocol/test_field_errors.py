"""The 400's body (vectors of the protocol notes, B.1)."""

import msgspec
import pytest

from tests.protocol.test_rules import entry
from worker.protocol.field_errors import FieldError, FieldsRefused, field_error
from worker.wire.messages import Violation


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(FieldError(field="f", constraint="c", message="m"), entry("f", "c", "m"), id="TV-065"),
        pytest.param(
            FieldError(field="f", constraint="c", message="m", value=""), entry("f", "c", "m", ""), id="empty"
        ),
        pytest.param(
            field_error(Violation("prompt", "context_length(4096)", "prompt has 5210 tokens; context is 4096")),
            entry("prompt", "context_length(4096)", "prompt has 5210 tokens; context is 4096"),
            id="engine",
        ),
    ],
)
def test_value_is_absent_unless_given(error: FieldError, expected: str) -> None:
    assert msgspec.json.encode(error) == expected.encode()


def test_the_refusal_in_one_line_has_every_message() -> None:
    errors = [FieldError(field="f", constraint="c", message=message) for message in ("one", "two")]
    assert str(FieldsRefused(errors)) == "one; two"
