"""The values that count as secrets in a log line, and those that do not."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.rows import read
from worker.observe.redaction import MASK, NO_SECRETS, Secrets

redact, redact_text = NO_SECRETS.redact, NO_SECRETS.redact_text

ROWS = read(Path(__file__).with_name("secrets.jsonl"))


@pytest.mark.parametrize("key", [row["key"] for row in ROWS if "key" in row])
def test_the_value_of_a_secret_key_is_masked_at_any_depth(key: str) -> None:
    assert redact(key, "s3cret") == MASK
    assert redact(key, {"inner": "s3cret"}) == MASK
    assert redact("headers", [{key: ["s3cret"]}]) == [{key: MASK}]


@pytest.mark.parametrize("text", [row["text"] for row in ROWS if "text" in row])
def test_a_secret_inside_a_text_is_masked_once_and_the_rest_stays(text: str) -> None:
    redacted = redact_text(text)
    assert "s3cret" not in redacted
    assert redacted.count(MASK) == 1
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize("row", [row for row in ROWS if "plain" in row], ids=str)
def test_what_only_looks_like_a_secret_stays(row: dict[str, Any]) -> None:
    assert redact(row["under"], row["plain"]) == row["plain"]


def test_values_become_what_json_can_carry() -> None:
    value = {1: (Path("/x"), Decimal("1.5")), "name": "a\udc80"}
    assert redact("field", value) == {"1": ["/x", "1.5"], "name": "a\\udc80"}


@given(
    st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)) | st.floats() | st.none())
)
def test_whatever_comes_can_be_encoded(value: dict[str, object]) -> None:
    assert msgspec.json.encode(redact("field", value))


KNOWN = "correct-horse"


@pytest.mark.parametrize("text", [KNOWN, f"job {KNOWN} of {KNOWN}", f"/cancel/{KNOWN}", f"x{KNOWN}x"])
def test_a_known_secret_is_masked_wherever_it_stands(text: str) -> None:
    secrets = Secrets(KNOWN)
    assert KNOWN not in secrets.redact_text(text)
    assert secrets.redact("job_id", {text: [text]}) == {
        secrets.redact_text(text): [text.replace(KNOWN, MASK)],
    }


def test_a_short_secret_is_masked_alone_and_not_inside_other_words_and_none_masks_nothing() -> None:
    secrets = Secrets("a")
    assert secrets.redact("job_id", "a") == MASK
    assert secrets.redact("event", "startup at a place") == "startup at a place"
    assert Secrets(None, "").redact("job_id", "job-1") == "job-1"


@given(before=st.text(max_size=20), after=st.text(max_size=20), secret=st.text("abcXYZ019-._~+/=", min_size=6))
def test_no_text_around_a_known_secret_saves_it(before: str, after: str, secret: str) -> None:
    assert secret not in Secrets(secret).redact_text(before + secret + after).replace(MASK, "|")
