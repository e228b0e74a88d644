"""The values that count as secrets in a log line, and those that do not."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.observe.redaction import MASK, NO_SECRETS, Secrets

redact, redact_text = NO_SECRETS.redact, NO_SECRETS.redact_text

SECRET_KEYS = [
    *("api_key", "api-key", "token", "LLORCH_API_TOKEN", "hf_token", "authorization", "Proxy-Authorization"),
    *("password", "client_secret", "set-cookie"),
]

SECRET_TEXTS = [
    *("Authorization: Bearer s3cret", "{'authorization': 'Bearer s3cret'}", "authorization: Basic s3cret"),
    *("got bearer s3cret, wanted another", "http://user:s3cret@host/path", "https://s3cret@host"),
    *("https://host/p?access_token=s3cret&x=1", "LLORCH_API_TOKEN=s3cret", '{"api_key": "s3cret"}'),
    *("X-Api-Key: s3cret", "password=s3cret", "using hf_s3cretABCDEFGHIJKLMN now"),
]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_the_value_of_a_secret_key_is_masked_at_any_depth(key: str) -> None:
    assert redact(key, "s3cret") == MASK
    assert redact(key, {"inner": "s3cret"}) == MASK
    assert redact("headers", [{key: ["s3cret"]}]) == [{key: MASK}]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_a_secret_inside_a_text_is_masked_once_and_the_rest_stays(text: str) -> None:
    redacted = redact_text(text)
    assert "s3cret" not in redacted
    assert redacted.count(MASK) == 1
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens_in", 5),
        ("token", 17),
        ("tokenizer_kind", "gguf-bpe"),
        ("time_to_first_token_ms", 3.5),
        ("message", "prompt has 5210 tokens; context is 4096"),
        ("url", "http://127.0.0.1:8080/v1/health?x=1"),
        ("job_id", "token-1"),
        ("device", None),
    ],
)
def test_what_only_looks_like_a_secret_stays(key: str, value: object) -> None:
    assert redact(key, value) == value


def test_values_become_what_json_can_carry() -> None:
    value = {1: (Path("/x"), Decimal("1.5")), "name": "a\udc80"}
    assert redact("field", value) == {"1": ["/x", "1.5"], "name": "a\\udc80"}


@given(
    st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)) | st.floats() | st.none())
)
def test_whatever_comes_can_be_encoded(value: dict[str, object]) -> None:
    assert msgspec.json.encode(redact("field", value))


# ── what the worker knows to be secret ───────────────────────────────────────────────────────────

KNOWN = "correct-horse"


@pytest.mark.parametrize("text", [KNOWN, f"job {KNOWN} of {KNOWN}", f"/cancel/{KNOWN}", f"x{KNOWN}x"])
def test_a_known_secret_is_masked_wherever_it_stands(text: str) -> None:
    secrets = Secrets(KNOWN)
    assert KNOWN not in secrets.redact_text(text)
    assert secrets.redact("job_id", {text: [text]}) == {
        secrets.redact_text(text): [text.replace(KNOWN, MASK)],
    }


def test_a_short_secret_is_masked_alone_and_not_inside_other_words() -> None:
    secrets = Secrets("a")
    assert secrets.redact("job_id", "a") == MASK
    assert secrets.redact("event", "startup at a place") == "startup at a place"


def test_no_token_masks_nothing() -> None:
    assert Secrets(None, "").redact("job_id", "job-1") == "job-1"


@given(before=st.text(max_size=20), after=st.text(max_size=20), secret=st.text("abcXYZ019-._~+/=", min_size=6))
def test_no_text_around_a_known_secret_saves_it(before: str, after: str, secret: str) -> None:
    assert secret not in Secrets(secret).redact_text(before + secret + after).replace(MASK, "|")
