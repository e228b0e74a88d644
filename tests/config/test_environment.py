"""Traces are asked for by OpenTelemetry's own variables, and by none of ours."""

import pytest

from worker.config.environment import ENDPOINTS, PROTOCOLS, asks_for_traces
from worker.errors import UsageError

URL = "http://collector:4318"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_asks_for_traces(endpoint: str) -> None:
    assert asks_for_traces({endpoint: URL}) == endpoint
    assert asks_for_traces({endpoint: URL, "OTEL_TRACES_EXPORTER": "console, otlp"}) == endpoint
    assert asks_for_traces({endpoint: URL, "OTEL_SDK_DISABLED": "false"}) == endpoint


@pytest.mark.parametrize(
    "more", [{}, {"OTEL_SDK_DISABLED": "True"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "console"}]
)
def test_without_one_or_when_another_variable_says_no_there_are_none(more: dict[str, str]) -> None:
    assert asks_for_traces({"OTEL_SERVICE_NAME": "x", ENDPOINTS[0]: "", **more}) is None
    if more:
        assert asks_for_traces({ENDPOINTS[0]: URL, **more}) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_supported_protocol_is_accepted(protocol: str) -> None:
    assert asks_for_traces({ENDPOINTS[1]: URL, protocol: "http/protobuf"})
    assert asks_for_traces({protocol: "grpc"}) is None, "nobody asks for traces"
    with pytest.raises(UsageError, match=rf"{protocol}='grpc' is not supported: set it to http/protobuf"):
        asks_for_traces({ENDPOINTS[1]: URL, protocol: "grpc"})
