"""Our own fields are read as their types and refuse all others."""

from contextlib import suppress

import pytest

from tests.apis.pool.test_execute import SHAPED_AS, raw_body
from worker.apis.pool.execute import MalformedJson, WrongShape, parse_execute
from worker.wire.jobs import narrow


@pytest.mark.parametrize(
    ("field", "literal", "value"),
    [
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
    assert str(caught.value).startswith(SHAPED_AS + field)


def test_a_schema_of_any_depth_is_read_or_reported_to_be_too_deep() -> None:
    """The bounds of two decoders lie close together; none of them may show."""
    for depth in range(800, 1_100, 7):
        with suppress(MalformedJson):
            parse_execute(raw_body("json_schema", '{"not":' * depth + "{}" + "}" * depth))
