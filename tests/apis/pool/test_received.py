"""The meaning of request headers (vectors of the protocol notes, B.5, and 072)."""

import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import cases
from worker.apis.core.received import correlation_id, foreign_codings, is_json_content_type, parse_deadline, request_id
from worker.errors import InvalidRequest

ID = "550e8400-e29b-41d4-a716-446655440000"


@cases
def test_a_uuid_form_is_kept_as_it_stands(value: str) -> None:
    assert correlation_id(value) == value.strip()


@cases
def test_anything_else_gets_a_fresh_uuid4(value: str | None) -> None:
    fresh = correlation_id(value)
    assert uuid.UUID(fresh).version == 4
    assert str(uuid.UUID(fresh)) == fresh != value


@pytest.mark.parametrize("value", [pytest.param(None, id="TV-177")])
def test_two_requests_without_an_id_get_different_ones(value: str | None) -> None:
    assert correlation_id(value) != correlation_id(value)


@cases
def test_deadline_is_epoch_milliseconds_or_iso_8601(value: str, epoch_s: float) -> None:
    assert parse_deadline(value) == epoch_s


@pytest.mark.parametrize(
    "value",
    ["", "soon", "-1", "1.5", "1e12", "\u0661\u0662", "9" * 16, "9" * 5000, "2025-13-01T00:00:00Z", "x" * 10_000],
)
def test_unreadable_deadline_is_an_invalid_request_in_one_short_line(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid request: X-Deadline '") as caught:
        parse_deadline(value)
    assert len(str(caught.value)) < 200


@given(st.text() | st.datetimes(timezones=st.none() | st.timezones()).map(datetime.isoformat))
def test_deadline_is_a_time_or_an_invalid_request(value: str) -> None:
    with suppress(InvalidRequest):
        assert isinstance(parse_deadline(value), float)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC)))
def test_both_spellings_of_a_moment_mean_the_same(moment: datetime) -> None:
    epoch_ms = int(moment.timestamp() * 1000)
    from_iso = parse_deadline(re.sub(r"\+00:00$", "Z", moment.isoformat()))
    assert abs(parse_deadline(str(epoch_ms)) - from_iso) <= 0.0011


@cases
def test_json_content_types(value: str | None, is_json: bool) -> None:
    assert is_json_content_type(value) is is_json


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256))
def test_a_request_id_of_visible_ascii_is_kept(value: str) -> None:
    assert request_id(value) == value


@given(st.text(), st.sampled_from([" ", "\t", "\r\n", "\x00", "\x7f", "é", "\u2028", "x" * 257]), st.text())
def test_any_other_request_id_is_none(before: str, between: str, behind: str) -> None:
    assert request_id(before + between + behind) is None
    assert request_id("") is request_id(None) is None


@cases
def test_every_coding_but_identity_is_foreign(values: list[str], found: str) -> None:
    assert foreign_codings(values) == found
