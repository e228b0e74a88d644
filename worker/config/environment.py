"""The process's environment, which no other room reads."""

import os
from collections.abc import Mapping

from worker.config.settings import API_TOKEN
from worker.errors import UsageError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SUPPORTED = "http/protobuf"


def environment() -> dict[str, str]:
    return dict(os.environ)


def environment_for_downloads() -> dict[str, str]:
    """The environment of a program that fetches a model: this process's, without the token of its clients."""
    return {name: value for name, value in environment().items() if name not in API_TOKEN}


def asks_for_traces(environ: Mapping[str, str]) -> str | None:
    """The variable that names a collector, unless another one says that nothing is to be sent; an empty one is none.
    OpenTelemetry's SDK reads all the other variables itself.

    Source: the OpenTelemetry specification, "Environment Variable Specification" and "OTLP Exporter".
    Raises: UsageError for a protocol that is not spoken.
    """
    endpoint = next((name for name in ENDPOINTS if environ.get(name)), None)
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
    if endpoint is None or is_disabled or "otlp" not in map(str.strip, exporters):
        return None
    protocol = next((name for name in PROTOCOLS if environ.get(name)), None)
    if protocol is not None and environ[protocol].strip() != SUPPORTED:
        raise UsageError(
            f"{protocol}={environ[protocol]!r} is not supported: set it to {SUPPORTED}, and {endpoint} to a collector "
            "that supports it, such as http://localhost:4318; or unset both to send no traces"
        )
    return endpoint
