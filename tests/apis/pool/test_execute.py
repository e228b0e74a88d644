"""Some bytes are a request; all others have their answer (vectors of the protocol notes, B.1)."""

import json
import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apis.pool.vectors import R0, body_of, without
from tests.tables import cases
from worker.apis.pool.execute import (
    BodyRejected,
    ExecuteRequest,
    MalformedJson,
    WrongShape,
    parse_cancel,
    parse_execute,
)
from worker.errors import WorkerError
from worker.wire.jobs import narrow

PARSED_AS = "Failed to parse the request body as JSON: "
SHAPED_AS = "Failed to deserialize the JSON body into the target type: "


def raw_body(field: str, literal: str) -> bytes:
    """R0 with one value written exactly as given."""
    members = [f'"{name}":{json.dumps(value)}' for name, value in R0.items() if name != field]
    return ("{" + ",".join([*members, f'"{field}":{literal}']) + "}").encode()


@cases
def test_value_is_read_as_its_type(field: str, literal: str, value: object) -> None:
    read = getattr(parse_execute(raw_body(field, literal)), field)
    assert (list(read) if isinstance(read, tuple) else read) == value


@cases
def test_wrong_type_is_422_and_names_the_field(field: str, literal: str) -> None:
    with pytest.raises(WrongShape) as caught:
        parse_execute(raw_body(field, literal))
    assert caught.value.http_status == 422
    assert str(caught.value).startswith(SHAPED_AS + field)


@cases
def test_missing_field_is_422(field: str) -> None:
    with pytest.raises(WrongShape) as caught:
        parse_execute(body_of(without(field)))
    assert str(caught.value) == f"{SHAPED_AS}missing field `{field}`"


@pytest.mark.parametrize("spelling", ["seed", "\\u0073eed"])
def test_known_field_given_twice_is_422(spelling: str) -> None:
    body = body_of(R0)[:-1] + f',"{spelling}":1}}'.encode()
    with pytest.raises(WrongShape) as caught:
        parse_execute(body)
    assert str(caught.value) == f"{SHAPED_AS}duplicate field `seed`"


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"a"', b'["a","b",1]'])
def test_json_that_is_no_object_is_422(body: bytes) -> None:
    with pytest.raises(WrongShape):
        parse_execute(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{invalid json}", id="TV-067"),
        pytest.param(b"", id="TV-081"),
        pytest.param(b" \n", id="blank"),
        pytest.param(b"{", id="open-object"),
        pytest.param(b"[1,", id="open-array"),
        pytest.param(body_of(R0)[:-1], id="truncated"),
        pytest.param(body_of(R0) + b"x", id="trailing-character"),
        pytest.param(body_of(R0) + b"{}", id="second-document"),
        pytest.param(body_of(R0)[:-1] + b",}", id="trailing-comma"),
        pytest.param(body_of(R0)[:-1] + b',"x":NaN}', id="nan"),
        pytest.param(body_of(R0)[:-1] + b',"x":01}', id="leading-zero"),
        pytest.param(body_of(R0)[:-1] + b',"x":"a\tb"}', id="raw-control-character"),
        pytest.param(body_of(R0)[:-1] + b',"x":"\xff"}', id="invalid-utf8-in-unknown-field"),
        pytest.param(b'{"\xff":1}', id="invalid-utf8-in-name"),
        pytest.param(raw_body("prompt", '"\\ud800"'), id="lone-high-surrogate"),
        pytest.param(raw_body("prompt", '"\\udc00 and more"'), id="lone-low-surrogate"),
        pytest.param(raw_body("prompt", '"?"').replace(b"?", b"\xed\xa0\x80"), id="encoded-surrogate"),
        pytest.param(body_of(R0)[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep-unknown-field"),
        pytest.param(b'{"x":' * 100_000, id="deep-objects"),
        pytest.param(b"[" * 100_000, id="deep-arrays"),
    ],
)
def test_not_json_is_400(body: bytes) -> None:
    with pytest.raises(MalformedJson) as caught:
        parse_execute(body)
    assert caught.value.http_status == 400
    assert str(caught.value).startswith(PARSED_AS)


@cases
def test_unknown_fields_are_ignored(extra: dict[str, Any]) -> None:
    assert parse_execute(body_of(R0 | extra)) == parse_execute(body_of(R0))


def test_unknown_field_may_come_twice_and_be_out_of_range() -> None:
    body = body_of(R0)[:-1] + b',"x":1e999,"x":2}'
    assert parse_execute(body) == parse_execute(body_of(R0))


@cases
def test_absent_fields_have_their_defaults_and_given_ones_are_kept(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert parse_execute(body_of(sent)) == msgspec.convert(expected, ExecuteRequest)


@cases
def test_request_survives_being_written_and_read(sent: dict[str, Any]) -> None:
    request = parse_execute(body_of(sent))
    assert parse_execute(msgspec.json.encode(request)) == request


def test_cancel_body_is_read_by_the_same_rules() -> None:
    assert parse_cancel(b'{"job_id":"a","more":1}').job_id == "a"
    with pytest.raises(MalformedJson):
        parse_cancel(b"")
    with pytest.raises(WrongShape, match="missing field `job_id`"):
        parse_cancel(b"{}")
    with pytest.raises(WrongShape, match="duplicate field `job_id`"):
        parse_cancel(b'{"job_id":"a","job_id":"b"}')


def test_rejections_are_errors_of_the_one_tree_with_codes_of_their_own() -> None:
    """A handler of BodyRejected answers text/plain; that of WorkerError answers JSON."""
    assert issubclass(BodyRejected, WorkerError)
    assert {error.http_status for error in (MalformedJson, WrongShape)} == {400, 422}


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
requests = st.fixed_dictionaries({}, optional={name: st.just(value) | json_values for name, value in R0.items()})
damaged = st.tuples(st.integers(0, 300), st.binary(max_size=3))


@given(st.binary() | st.text().map(str.encode) | json_values.map(body_of) | requests.map(body_of))
def test_parsing_gives_a_request_or_one_of_the_two_rejections(body: bytes) -> None:
    with suppress(MalformedJson, WrongShape):
        assert isinstance(parse_execute(body), ExecuteRequest)


@pytest.mark.long
@given(requests, damaged)
@settings(max_examples=500)
def test_a_damaged_body_never_raises_anything_else(value: dict[str, Any], damage: tuple[int, bytes]) -> None:
    body = body_of(value)
    at, patch = damage
    with suppress(MalformedJson, WrongShape):
        parse_execute(body[:at] + patch + body[at + 1 :])


@given(st.text(alphabet=st.sampled_from('\\ud8cDC0f9a"n')))
@settings(max_examples=1000)
def test_escapes_count_the_same_in_a_field_read_and_in_one_ignored(escapes: str) -> None:
    """A field that is skipped is checked as strictly as one that is read."""
    assert _is_json(raw_body("prompt", f'"{escapes}"')) == _is_json(body_of(R0)[:-1] + f',"x":"{escapes}"}}'.encode())


def _is_json(body: bytes) -> bool:
    try:
        parse_execute(body)
    except MalformedJson:
        return False
    return True


@given(st.floats(allow_nan=False))
def test_narrowing_is_the_conversion_to_f32(value: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    assert struct.pack("<f", narrow(value)) == struct.pack("<f", expected)


def test_a_schema_of_any_depth_is_read_or_reported_to_be_too_deep() -> None:
    """The bounds of two decoders lie close together; none of them may show."""
    for depth in range(800, 1_100, 7):
        with suppress(MalformedJson):
            parse_execute(raw_body("json_schema", '{"not":' * depth + "{}" + "}" * depth))
