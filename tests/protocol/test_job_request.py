"""A request becomes the frame that the engine is given."""

from dataclasses import asdict, fields
from math import inf
from typing import Any

from tests.protocol.vectors import OTHER_THAN_DEFAULTS, R0, body_of
from worker.protocol.events import TEXT_ONLY
from worker.protocol.execute import GenerationFields, parse_execute
from worker.protocol.job_request import JobRequest
from worker.wire.jobs import JobKey, Sampling, Submit, TokenId


def submit_of(fields: GenerationFields) -> Submit:
    return JobRequest(job_id="a", fields=fields, prompt="Hello", dialect=TEXT_ONLY).submit(JobKey(1))


def submitted(**sent: Any) -> Submit:
    return submit_of(parse_execute(body_of(R0 | sent)))


def test_every_field_of_sampling_is_the_requests() -> None:
    """Each is given another value than its default."""
    given = {"seed": 7, **OTHER_THAN_DEFAULTS, "logprobs": 0}
    changed = {"logit_bias": ((TokenId(5), 1.5), (TokenId(0), -inf)), "stop_token_ids": (TokenId(8), TokenId(9))}
    assert set(given) == {field.name for field in fields(Sampling)}
    assert asdict(submitted(**given).sampling) == given | changed


def test_defaults_are_off() -> None:
    fields = GenerationFields(max_tokens=1, seed=7)
    made = submit_of(fields)
    assert made.sampling == Sampling(seed=7, xtc_threshold=fields.xtc_threshold)
    assert (made.grammar, made.json_schema, made.regex) == (None, None, None)


def test_a_missing_seed_is_drawn_anew_for_each_request() -> None:
    seeds = {submitted(seed=None).sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**53 for seed in seeds), "JavaScript reads numbers as float64"


def test_constraints_go_on_as_the_texts_they_are() -> None:
    assert submitted(grammar='root ::= "a"').grammar == 'root ::= "a"'
    assert submitted(regex="a+").regex == "a+"
    text = submitted(json_schema={"properties": {"z": {}, "a": {"const": "é"}}, "title": "T"}).json_schema
    assert text == '{"properties":{"z":{},"a":{"const":"é"}},"title":"T"}'


def test_the_schema_that_allows_everything_is_not_a_missing_one() -> None:
    assert submitted(json_schema=True).json_schema == "true"
    assert submitted(json_schema={}).json_schema == "{}"


def test_a_salt_goes_on_as_a_digest_that_another_salt_does_not_have() -> None:
    salts = [submitted(cache_salt=salt).salt for salt in ("a", "a", "b", "ab", "\N{KELVIN SIGN}", "K", None)]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 6
    assert {len(salt) for salt in salts} == {0, 16}
    assert submitted().salt == b""
