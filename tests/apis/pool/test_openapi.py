"""The OpenAPI document as such: valid by its own rules, true of the structs, its examples true of its schemas."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from tests.apis.pool.vectors import R0, violations
from tests.tables import cases
from worker.apis.core.events import (
    EVENT_TYPES,
    EndEvent,
    ErrorEvent,
    Event,
    MetricsEvent,
    Piece,
    StartedEvent,
    StreamCode,
)
from worker.apis.pool.execute import ExecuteRequest, WrongShape, choose_dialect, parse_execute
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.front.state import Front
from worker.server.web.middleware import OPEN_PATHS
from worker.server.web.pages import document_of
from worker.server.web.server import described_routes, places
from worker.wire.jobs import Finished, JobKey, Logprob, TokenId, TopToken

Json = dict[str, Any]

LINES = choose_dialect("application/jsonl", sse_event_names=False)


SETTINGS = Settings(model="m.gguf", worker_id="w", max_prompt_chars=77, max_tokens_out=55)


def document(settings: Settings = SETTINGS) -> Json:
    made: Json = msgspec.json.decode(document_of(settings))
    return made


DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]


def validator(schema: Json) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]}, format_checker=FormatChecker())


EVENTS = validator({"$ref": "#/components/schemas/Event"})


def resolved(node: Json) -> Json:
    """The schema that a reference stands for."""
    while "$ref" in node:
        target = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        node = target
    return node


def answers() -> Iterator[tuple[str, str, Json]]:
    for path, item in DOCUMENT["paths"].items():
        for method in ("get", "post"):
            for status, answer in item.get(method, {}).get("responses", {}).items():
                yield path, status, resolved(answer)


def walk(node: Any) -> Iterator[Json]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for inner in node if isinstance(node, list) else ():
        yield from walk(inner)


# ── the document ─────────────────────────────────────────────────────────────────────────────────


def test_every_reference_leads_somewhere() -> None:
    references = [node for node in walk(DOCUMENT) if isinstance(node.get("$ref"), str)]
    assert references
    assert all(resolved(node) for node in references)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_every_example_is_allowed_by_the_schema_beside_it() -> None:
    beside = [node for node in walk(DOCUMENT) if "examples" in node and "schema" in node]
    assert len(beside) > 20
    for node in beside:
        for example in node["examples"].values():
            validator(node["schema"]).validate(example["value"])


def test_every_operation_has_its_own_id() -> None:
    ids = [node["operationId"] for node in walk(DOCUMENT) if "operationId" in node]
    assert len(ids) == len(set(ids))


def test_the_paths_are_the_workers_routes_and_those_without_a_token_are_open() -> None:
    async def routes() -> set[tuple[str, str]]:
        front = Front(SETTINGS, Metrics("w"))
        return {place for handler in described_routes(front) for place in places(handler)}

    described = {
        (name.upper(), path): operation
        for path, item in DOCUMENT["paths"].items()
        for name, operation in item.items()
        if name != "parameters"
    }
    assert described.keys() == asyncio.run(routes())
    open_paths = {path for (_, path), operation in described.items() if operation.get("security") == []}
    assert open_paths == OPEN_PATHS & {path for _, path in described}
    assert open_paths == {path for (_, path), operation in described.items() if "401" not in operation["responses"]}


def test_every_answer_carries_the_correlation_id_and_errors_their_headers() -> None:
    found = {(path, status): set(answer["headers"]) for path, status, answer in answers()}
    assert all("X-Correlation-ID" in names for names in found.values())
    assert "WWW-Authenticate" in found["/execute", "401"]
    assert "Retry-After" in found["/execute", "503"]
    assert {"Cache-Control", "X-Accel-Buffering"} < found["/execute", "200"]
    assert "Allow" in found["/health", "405"]
    statuses = ["200", "400", "401", "403", "405", "409", "413", "415", "421", "422", "500", "503", "504"]
    assert [status for path, status in found if path == "/execute"] == statuses


def test_the_errors_of_a_status_are_reported_by_their_codes() -> None:
    codes = {
        status: set(node["code"]["enum"])
        for path, status, answer in answers()
        for node in walk(answer)
        if path == "/execute" and isinstance(node.get("code"), dict) and "enum" in node["code"]
    }
    assert codes == {
        "400": {"INVALID_REQUEST"},
        "401": {"UNAUTHORIZED"},
        "403": {"FORBIDDEN"},
        "409": {"DUPLICATE_JOB"},
        "421": {"WRONG_HOST"},
        "500": {"INTERNAL"},
        "503": {"WORKER_BUSY", "WORKER_LOADING", "WORKER_DRAINING", "WORKER_UNHEALTHY"},
        "504": {"DEADLINE_EXCEEDED"},
    }


def test_a_token_is_needed_where_one_is_set() -> None:
    assert document()["security"] == [{}, {"token": []}]
    assert document(replace(SETTINGS, api_key="secret"))["security"] == [{"token": []}]


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def test_the_request_has_every_field_with_a_description_and_the_workers_limits() -> None:
    request = SCHEMAS["ExecuteRequest"]
    names = [field.name for field in msgspec.structs.fields(ExecuteRequest)]
    assert list(request["properties"]) == names
    assert set(R0) < set(names)
    assert set(request["required"]) == {"job_id", "max_tokens"}
    assert all(request["properties"][name]["description"] for name in names)
    assert request["properties"]["prompt"]["maxLength"] == 77
    assert request["properties"]["max_tokens"]["maximum"] == 55
    assert request["properties"]["dry_base"].items() >= {"minimum": 1, "maximum": 16, "default": 1.75}.items()
    assert request["properties"]["xtc_threshold"]["default"] == 0.1


@cases
def test_a_prompt_or_messages_is_what_the_schema_allows_and_the_rules_do(sent: Json) -> None:
    body = {"job_id": "a", "max_tokens": 1, **sent}
    try:
        request = parse_execute(msgspec.json.encode(body))
        is_allowed = violations(request, 55, None, max_prompt_chars=77) == []
    except WrongShape:
        is_allowed = False
    assert validator({"$ref": "#/components/schemas/ExecuteRequest"}).is_valid(body) == is_allowed


# ── events ───────────────────────────────────────────────────────────────────────────────────────


def test_the_types_of_events_are_distinguished_by_their_type() -> None:
    event = SCHEMAS["Event"]
    assert tuple(event["discriminator"]["mapping"]) == EVENT_TYPES
    assert event["discriminator"]["propertyName"] == "type"
    shapes = [resolved(shape) for shape in event["oneOf"]]
    assert [shape["properties"]["type"]["enum"] for shape in shapes] == [[name] for name in EVENT_TYPES]
    assert len(get_args(Event)) == len(EVENT_TYPES)


def test_a_frame_and_a_line_hold_the_same_event() -> None:
    content = DOCUMENT["paths"]["/execute"]["post"]["responses"]["200"]["content"]
    frame = resolved(content["text/event-stream"]["schema"])["properties"]["data"]
    assert frame["contentMediaType"] == "application/json"
    for media_type in ("application/jsonl", "application/x-ndjson"):
        assert content[media_type]["schema"] == frame["contentSchema"] == {"$ref": "#/components/schemas/Event"}


counts = st.integers(0, 2**63 - 1)
tops = st.builds(TopToken, st.text(), st.integers(0, 2**31).map(TokenId), st.floats(max_value=0, allow_infinity=False))
encoded = st.one_of(
    st.builds(
        StartedEvent,
        job_id=st.text(min_size=1),
        model=st.text(),
        started_at=st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        seed=st.integers(0, 2**64 - 1),
        prompt_tokens=counts,
        cached_tokens=counts,
    ).map(LINES.started),
    st.builds(
        Piece,
        st.text(min_size=1),
        counts,
        st.lists(st.builds(Logprob, tops, st.lists(tops).map(tuple)), max_size=3),
    ).map(LINES.token),
    st.builds(
        MetricsEvent,
        tokens_per_sec=st.floats(0, 1e9),
        vram_bytes=counts,
        job_id=st.text(min_size=1),
        tokens_out=counts,
        decode_time_ms=counts,
    ).map(LINES.metrics),
    st.builds(
        EndEvent,
        tokens_out=counts,
        decode_time_ms=counts,
        stop_reason=st.sampled_from(("MAX_TOKENS", "EOS", "STOP_SEQUENCE")),
        stop_sequence_matched=st.just(msgspec.UNSET) | st.text(min_size=1),
        tokens_sampled=counts,
        prompt_tokens=counts,
        time_to_first_token_ms=counts,
        context_full=st.booleans(),
    ).map(lambda event: LINES.end(event, Finished(JobKey(1), event.stop_reason))),
    st.builds(ErrorEvent, code=st.sampled_from(get_args(StreamCode)), message=st.text(), retriable=st.booleans()).map(
        LINES.error
    ),
)


@given(encoded)
def test_whatever_is_encoded_is_an_event_by_the_schema_and_has_no_key_it_does_not_name(line: bytes) -> None:
    event = msgspec.json.decode(line)
    EVENTS.validate(event)
    shape = resolved({"$ref": SCHEMAS["Event"]["discriminator"]["mapping"][event["type"]]})
    assert event.keys() <= shape["properties"].keys()


@cases
def test_what_is_no_event_is_none_by_the_schema(broken: Json) -> None:
    assert not EVENTS.is_valid(broken)
