"""A request becomes the frame that the engine is given."""

from typing import Any

from msgspec.structs import asdict

from tests.apis.pool.vectors import OTHER_THAN_DEFAULTS, R0, body_of
from worker.apis.core.request import JobRequest, Request
from worker.apis.pool.execute import TEXT_ONLY, parse_execute
from worker.wire.jobs import JobKey, SamplingParams, Submit


def submit_of(fields: SamplingParams) -> Submit:
    asked = Request(prompts=("Hello",), params=fields)
    return JobRequest(job_id="a", asked=asked, prompt="Hello", dialect=TEXT_ONLY).submit(JobKey(1))


def submitted(**sent: Any) -> Submit:
    return submit_of(parse_execute(body_of(R0 | sent)))


def test_the_engine_gets_what_was_sent_without_the_rest_of_the_request() -> None:
    given = R0 | {"seed": 7, **OTHER_THAN_DEFAULTS, "logprobs": 0, "cache_salt": "a"}
    made = submitted(**given).sampling
    assert type(made) is SamplingParams
    read = {"stop": (), "stop_token_ids": (8, 9), "cache_salt": None}
    assert {name: value for name, value in asdict(made).items() if name in given} == {
        name: value for name, value in (given | read).items() if name not in ("job_id", "prompt")
    }


def test_a_missing_seed_is_drawn_anew_for_each_request() -> None:
    seeds = {submitted(seed=None).sampling.drawn_seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**53 for seed in seeds), "JavaScript reads numbers as float64"


def test_constraints_go_on_as_the_texts_they_are() -> None:
    assert submitted(grammar='root ::= "a"').sampling.grammar == 'root ::= "a"'
    assert submitted(regex="a+").sampling.regex == "a+"
    text = submitted(json_schema={"properties": {"z": {}, "a": {"const": "é"}}, "title": "T"}).sampling.json_schema
    assert text == '{"properties":{"z":{},"a":{"const":"é"}},"title":"T"}'


def test_the_schema_that_allows_everything_is_not_a_missing_one() -> None:
    assert submitted(json_schema=True).sampling.json_schema == "true"
    assert submitted(json_schema={}).sampling.json_schema == "{}"


def test_a_salt_goes_on_as_a_digest_that_another_salt_does_not_have() -> None:
    salts = [submitted(cache_salt=salt).salt for salt in ("a", "a", "b", "ab", "\N{KELVIN SIGN}", "K", None)]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 6
    assert {len(salt) for salt in salts} == {0, 16}
    assert submitted().salt == b""
