"""The OpenAPI document is true of a real worker: schemathesis holds one to it, and streams are made of its events."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from tests.server.web.wire import COUNT
from tests.worker_process import WorkerProcess, serving

pytestmark = [pytest.mark.process, pytest.mark.model]

CONFIG = Path(__file__).parent / "contract" / "schemathesis.toml"
N_EXAMPLES = 15
"""The number of examples of each route and kind of data, in addition to every boundary; 300 were tried by hand."""

Document = dict[str, Any]


brief = serving("shallow_model", "--max-tokens-out", "4", "--ctx-size", "1024", "--parallel", "2")
"""A worker whose jobs are soon done: what is generated asks for as many tokens as it may."""


def validator(document: Document, name: str) -> Draft202012Validator:
    schema = {"components": document["components"], "$ref": f"#/components/schemas/{name}"}
    return Draft202012Validator(schema, format_checker=FormatChecker())


@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(brief: WorkerProcess) -> None:
    """Valid and invalid data, boundaries, other methods; statuses, content types, headers and bodies of the answers."""
    options = ("--config-file", str(CONFIG), "run", f"{brief.url}/openapi/openapi.json", "-n", str(N_EXAMPLES))
    tried = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *options], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stdout[-20_000:] + tried.stderr[-2000:]
    for phase in ("Examples", "Coverage", "Fuzzing"):
        assert f"✅  {phase}" in tried.stdout, tried.stdout
    assert "Operations:       26 selected / 29 total" in tried.stdout, tried.stdout


def test_the_limits_are_the_workers_own(brief: WorkerProcess) -> None:
    """/v1 cuts what is more."""
    schemas = brief.get("/openapi/openapi.json").json()["components"]["schemas"]
    assert schemas["ExecuteRequest"]["properties"]["max_tokens"]["maximum"] == 4
    for name in ("ChatRequest", "CompletionRequest"):
        assert "maximum" not in schemas[name]["properties"]["max_tokens"]


def test_every_event_of_real_streams_is_one_of_the_document(eloquent: WorkerProcess) -> None:
    """All five types, with what is left out of most: log-probabilities, a stop."""
    document = eloquent.get("/openapi/openapi.json").json()
    events = eloquent.run(prompt=COUNT, max_tokens=2, logprobs=2)
    events += eloquent.run(prompt=COUNT, max_tokens=200, stop=[events[1]["t"]], seed=2**64 - 1)
    with eloquent.stream(prompt=COUNT, max_tokens=1500) as stream:
        events += stream.until("metrics")
        assert eloquent.post(f"/cancel/{stream.job_id}").status_code == 202
        events += list(stream)
    assert {event["type"] for event in events} == {"started", "token", "metrics", "end", "error"}
    assert any("logprobs" in event for event in events)
    assert any("stop_sequence_matched" in event for event in events)
    known = document["components"]["schemas"]
    for event in events:
        validator(document, "Event").validate(event)
        shape = known[
            document["components"]["schemas"]["Event"]["discriminator"]["mapping"][event["type"]].split("/")[-1]
        ]
        assert event.keys() <= shape["properties"].keys()


@pytest.mark.parametrize(("path", "name"), [("/health", "HealthBody"), ("/v1/ready", "ReadyBody")])
def test_a_state_is_reported_as_documented_and_completely(worker: WorkerProcess, path: str, name: str) -> None:
    document = worker.get("/openapi/openapi.json").json()
    schema = document["components"]["schemas"][name]
    body = worker.get(path).json()
    validator(document, name).validate(body)
    assert set(schema["required"]) == schema["properties"].keys() == body.keys()
