"""Traces are asked for by OpenTelemetry's own variables, and by none of ours."""

import pytest

from worker.config.environment import ENDPOINTS, PROTOCOLS, asks_for_traces
from worker.errors import UsageError

URL = "http://collector:4318"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_asks_for_traces_unless_another_variable_says_no(endpoint: str) -> None:
    for more in ({}, {"OTEL_TRACES_EXPORTER": "console, otlp"}, {"OTEL_SDK_DISABLED": "false"}):
        assert asks_for_traces({endpoint: URL, **more}) == endpoint
        assert asks_for_traces({"OTEL_SERVICE_NAME": "x", endpoint: "", **more}) is None
    for no in ({"OTEL_SDK_DISABLED": "True"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "console"}):
        assert asks_for_traces({endpoint: URL, **no}) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_supported_protocol_is_accepted(protocol: str) -> None:
    assert asks_for_traces({ENDPOINTS[1]: URL, protocol: "http/protobuf"})
    assert asks_for_traces({protocol: "grpc"}) is None, "nobody asks for traces"
    with pytest.raises(UsageError, match=rf"{protocol}='grpc' is not supported: set it to http/protobuf"):
        asks_for_traces({ENDPOINTS[1]: URL, protocol: "grpc"})
