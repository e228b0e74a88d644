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


@pytest.mark.parametrize(
    ("field", "literal", "value"),
    [
        pytest.param("temperature", "2", 2.0, id="TV-018"),
        pytest.param("temperature", "2.00000001", 2.0, id="TV-019"),
        pytest.param("seed", "0", 0, id="TV-023"),
        pytest.param("seed", "18446744073709551615", 2**64 - 1, id="TV-024"),
        pytest.param("seed", "12345678901234567890", 12345678901234567890, id="TV-025"),
        pytest.param("seed", "null", None, id="TV-026"),
        pytest.param("top_k", "4294967295", 2**32 - 1, id="TV-033"),
        pytest.param("temperature", "-0.0", 0.0, id="TV-079"),
        pytest.param("job_id", '" "', " ", id="TV-080"),
        pytest.param("temperature", "0.1e-400", 0.0, id="underflow"),
        pytest.param("temperature", "1e39", float("inf"), id="above-f32"),
        pytest.param("temperature", "1e999", float("inf"), id="above-f64"),
        pytest.param("temperature", "-1e999", float("-inf"), id="below-f64"),
        pytest.param("temperature", "9" * 400, float("inf"), id="400-digits"),
        pytest.param("temperature", "9" * 5000, float("inf"), id="5000-digits"),
        pytest.param("prompt", '"\\ud83c\\udf0d"', "🌍", id="surrogate-pair"),
        pytest.param("prompt", '"\u2028\\u0000"', "\u2028\0", id="odd-characters"),
        pytest.param("logprobs", "null", None, id="logprobs-off"),
        pytest.param("frequency_penalty", "-0.1", narrow(-0.1), id="f32"),
        pytest.param("xtc_threshold", "0.1", narrow(0.1), id="xtc_threshold"),
        pytest.param("repeat_last_n", "-2147483648", -(2**31), id="i32"),
        pytest.param("logit_bias", '{"7":-100,"x":0.1}', {"7": -100.0, "x": narrow(0.1)}, id="logit_bias"),
        pytest.param("logit_bias", '{"7":1e999}', {"7": float("inf")}, id="logit_bias-above-f64"),
        pytest.param("stop_token_ids", "[0,4294967295]", (0, 2**32 - 1), id="stop_token_ids"),
        pytest.param("grammar", "null", None, id="grammar-off"),
        pytest.param("json_schema", "null", None, id="json_schema-off"),
        pytest.param("json_schema", " true", "true", id="json_schema-true"),
        pytest.param(
            "json_schema", '{"b": 1, "a":{"d":2,"c":"\\u00e9"}}', '{"b":1,"a":{"d":2,"c":"é"}}', id="json_schema"
        ),
        pytest.param("regex", '"[a-z]+\\n"', "[a-z]+\n", id="regex"),
        pytest.param("regex", "null", None, id="regex-off"),
        pytest.param("cache_salt", '"a\\u0000b"', "a\0b", id="cache_salt"),
        pytest.param("cache_salt", "null", None, id="cache_salt-off"),
    ],
)
def test_value_is_read_as_its_type(field: str, literal: str, value: object) -> None:
    assert getattr(parse_execute(raw_body(field, literal)), field) == value


@pytest.mark.parametrize(
    ("field", "literal"),
    [
        pytest.param("temperature", "null", id="TV-020"),
        pytest.param("temperature", '"hot"', id="TV-021"),
        pytest.param("temperature", "true", id="float-true"),
        pytest.param("temperature", "[1]", id="float-array"),
        pytest.param("seed", "-1", id="TV-027"),
        pytest.param("seed", "18446744073709551616", id="TV-028"),
        pytest.param("seed", "9" * 5000, id="seed-5000-digits"),
        pytest.param("seed", "1.5", id="TV-029"),
        pytest.param("seed", "1e999", id="seed-huge-float"),
        pytest.param("top_k", "4294967296", id="TV-034"),
        pytest.param("top_k", "-1", id="TV-035"),
        pytest.param("stop", "null", id="TV-051"),
        pytest.param("stop", '"END"', id="TV-052"),
        pytest.param("stop", "[1]", id="stop-number"),
        pytest.param("max_tokens", "100.0", id="TV-077"),
        pytest.param("max_tokens", "1e2", id="exponent"),
        pytest.param("max_tokens", '"100"', id="TV-078"),
        pytest.param("max_tokens", "null", id="max_tokens-null"),
        pytest.param("max_tokens", "true", id="max_tokens-true"),
        pytest.param("max_tokens", "9" * 400, id="max_tokens-400-digits"),
        pytest.param("job_id", "7", id="job_id-number"),
        pytest.param("prompt", "null", id="prompt-null"),
        pytest.param("prompt", "1e999", id="prompt-huge-float"),
        pytest.param("logprobs", "-1", id="logprobs-negative"),
        pytest.param("logprobs", "true", id="logprobs-true"),
        pytest.param("frequency_penalty", "null", id="frequency_penalty-null"),
        pytest.param("presence_penalty", '"0"', id="presence_penalty-string"),
        pytest.param("repeat_last_n", "2147483648", id="repeat_last_n-above-i32"),
        pytest.param("typical_p", "[]", id="typical_p-array"),
        pytest.param("top_n_sigma", "{}", id="top_n_sigma-object"),
        pytest.param("xtc_probability", "null", id="xtc_probability-null"),
        pytest.param("xtc_threshold", "false", id="xtc_threshold-false"),
        pytest.param("dry_multiplier", "null", id="dry_multiplier-null"),
        pytest.param("dry_base", '"1.75"', id="dry_base-string"),
        pytest.param("dry_allowed_length", "2.0", id="dry_allowed_length-float"),
        pytest.param("logit_bias", "null", id="logit_bias-null"),
        pytest.param("logit_bias", "[[7,1]]", id="logit_bias-array"),
        pytest.param("logit_bias", '{"7":"1"}', id="logit_bias-string-inside"),
        pytest.param("logit_bias", '{"7":null}', id="logit_bias-null-inside"),
        pytest.param("logit_bias", '{"7":1,"\\u0037":2}', id="logit_bias-id-given-twice"),
        pytest.param("json_schema", '{"type":"string","maxLength":2,"maxLength":30}', id="json_schema-member-twice"),
        pytest.param("json_schema", '{"properties":{"a":{},"\\u0061":{}}}', id="json_schema-property-twice"),
        pytest.param("ignore_eos", "1", id="ignore_eos-number"),
        pytest.param("min_tokens", "-1", id="min_tokens-negative"),
        pytest.param("stop_token_ids", "7", id="stop_token_ids-number"),
        pytest.param("stop_token_ids", "[-1]", id="stop_token_ids-negative"),
        pytest.param("stop_token_ids", '["7"]', id="stop_token_ids-string"),
        pytest.param("grammar", "{}", id="grammar-object"),
        pytest.param("regex", "true", id="regex-true"),
        pytest.param("cache_salt", "7", id="cache_salt-number"),
        pytest.param("cache_salt", '["a"]', id="cache_salt-array"),
        pytest.param("json_schema", '"{}"', id="json_schema-as-text"),
        pytest.param("json_schema", "[]", id="json_schema-array"),
        pytest.param("json_schema", '{"const":1e999}', id="json_schema-number-out-of-range"),
    ],
)
def test_wrong_type_is_422_and_names_the_field(field: str, literal: str) -> None:
    with pytest.raises(WrongShape) as caught:
        parse_execute(raw_body(field, literal))
    assert caught.value.http_status == 422
    assert str(caught.value).startswith(SHAPED_AS + field)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param("max_tokens", id="TV-022"),
        pytest.param("job_id", id="TV-068"),
        pytest.param("prompt", id="TV-069"),
    ],
)
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


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"stream": True, "model": "x"}, id="TV-070"),
        pytest.param({"a": [{"b": None}], "": 10**400}, id="any-shape"),
    ],
)
def test_unknown_fields_are_ignored(extra: dict[str, Any]) -> None:
    assert parse_execute(body_of(R0 | extra)) == parse_execute(body_of(R0))


def test_unknown_field_may_come_twice_and_be_out_of_range() -> None:
    body = body_of(R0)[:-1] + b',"x":1e999,"x":2}'
    assert parse_execute(body) == parse_execute(body_of(R0))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(
            {"job_id": "test-job", "prompt": "Hello", "max_tokens": 100, "temperature": 0.7, "seed": 42},
            ExecuteRequest(job_id="test-job", prompt="Hello", max_tokens=100, temperature=narrow(0.7), seed=42),
            id="TV-060",
        ),
        pytest.param(
            {"job_id": "test-job", "prompt": "Hello", "max_tokens": 100, "temperature": 0.7, "seed": 42}
            | {"top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1, "stop": ["\\n\\n", "END"], "min_p": 0.05},
            ExecuteRequest(
                job_id="test-job",
                prompt="Hello",
                max_tokens=100,
                temperature=narrow(0.7),
                seed=42,
                top_p=narrow(0.9),
                top_k=50,
                repetition_penalty=narrow(1.1),
                stop=("\\n\\n", "END"),
                min_p=narrow(0.05),
            ),
            id="TV-061",
        ),
        pytest.param(
            {"job_id": "test", "prompt": "Hello", "max_tokens": 100},
            ExecuteRequest(
                job_id="test",
                prompt="Hello",
                max_tokens=100,
                temperature=1.0,
                seed=None,
                top_p=1.0,
                top_k=0,
                repetition_penalty=1.0,
                stop=(),
                min_p=0.0,
            ),
            id="TV-062",
        ),
    ],
)
def test_absent_fields_have_their_defaults_and_given_ones_are_kept(
    sent: dict[str, Any], expected: ExecuteRequest
) -> None:
    assert parse_execute(body_of(sent)) == expected


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            {"job_id": "roundtrip-test", "prompt": "Test prompt", "max_tokens": 150, "temperature": 0.8, "seed": 999}
            | {"top_p": 0.95, "top_k": 40, "repetition_penalty": 1.2, "stop": ["END"], "min_p": 0.02},
            id="TV-063",
        ),
    ],
)
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
