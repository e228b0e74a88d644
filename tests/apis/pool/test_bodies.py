"""Bodies, byte for byte (vectors of the protocol notes, B.1, B.3, B.4 and B.6)."""

import json
from typing import Any, Literal

import msgspec
import pytest

from tests.apis.pool.test_rules import entry
from tests.tables import cases
from worker import errors
from worker.apis.core.bodies import (
    CancelBody,
    FieldError,
    FieldsRefused,
    HealthBody,
    LegacyReadyCallback,
    PrefixCacheBody,
    ReadyBody,
    ReadyCallback,
    encode_error,
    refused_by_engine,
    shutdown_body,
)
from worker.errors import WorkerError
from worker.wire.messages import Violation


def health(status: Literal["healthy", "unhealthy"], vram_bytes: int) -> bytes:
    body = HealthBody(
        status=status,
        vram_bytes=vram_bytes,
        worker_id="worker-1",
        state="starting",
        model=None,
        model_ref="smollm2",
        quant_kind=None,
        resident=False,
        vram_bytes_used=vram_bytes,
        memory_bytes=0,
        tokenizer_kind=None,
        vocab_size=None,
        context_length=None,
        uptime_seconds=3,
        slots_total=8,
        slots_busy=0,
        queue_depth=0,
        prefill_chunk=None,
        prefix_cache=PrefixCacheBody(
            tokens=0, bytes=0, limit_bytes=0, off_because=None, restored_tokens=0, restored_bytes=0
        ),
        deterministic=False,
        determinism="untested",
        determinism_differences=(),
        determinism_tried=None,
        drafts=None,
        draft_model=None,
        amx=None,
        batch_invariant=None,
        kernels=None,
        attention=None,
        parity=None,
    )
    return msgspec.json.encode(body)


@pytest.mark.parametrize(
    ("body", "prefix"),
    [
        pytest.param(health("healthy", 16_000_000_000), b'{"status":"healthy","vram_bytes":16000000000,', id="TV-141"),
        pytest.param(health("unhealthy", 0), b'{"status":"unhealthy","vram_bytes":0,', id="TV-142"),
    ],
)
def test_health_begins_as_it_always_did(body: bytes, prefix: bytes) -> None:
    assert body.startswith(prefix)


def test_health_keeps_its_keys_in_order_and_says_null_for_what_is_not_known_yet() -> None:
    assert health("unhealthy", 0) == (
        b'{"status":"unhealthy","vram_bytes":0,"worker_id":"worker-1","state":"starting","model":null,'
        b'"model_ref":"smollm2","quant_kind":null,"resident":false,"vram_bytes_used":0,"memory_bytes":0,'
        b'"tokenizer_kind":null,"vocab_size":null,"context_length":null,"capabilities":["text-gen"],"protocol":"sse",'
        b'"uptime_seconds":3,"slots_total":8,"slots_busy":0,"queue_depth":0,"parity":null,'
        b'"prefill_chunk":null,"prefix_cache":{"tokens":0,"bytes":0,"limit_bytes":0,"off_because":null,'
        b'"restored_tokens":0,"restored_bytes":0,"checkpoint_bytes":0,"checkpoint_stride":0},"deterministic":false,'
        b'"determinism":"untested","determinism_differences":[],"determinism_tried":null,"drafts":null,"draft_model":null,'
        b'"amx":null,"batch_invariant":null,"kernels":null,"attention":null}'
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ReadyBody(ready=True, state="busy", model_loaded=True), b'{"ready":true,"state":"busy","model_loaded":true}'),
        (CancelBody(job_id="job-xyz"), b'{"status":"cancelling","job_id":"job-xyz"}'),
        (shutdown_body(25.0), b'{"status":"shutting_down","timeout_seconds":25}'),
        (shutdown_body(0.5), b'{"status":"shutting_down","timeout_seconds":0.5}'),
    ],
)
def test_small_bodies(body: msgspec.Struct, expected: bytes) -> None:
    assert msgspec.json.encode(body) == expected


LEGACY = b'{"worker_id":"worker-123","vram_bytes":16000000000,"uri":"http://localhost:9090"}'


def full_callback() -> bytes:
    body = ReadyCallback(
        worker_id="worker-123",
        vram_bytes=16_000_000_000,
        uri="http://localhost:9090",
        model_ref="smollm2",
        memory_bytes=17_000_000_000,
        memory_architecture="vram-only",
        url="http://localhost:9090",
        backend="cuda",
        device=1,
    )
    return msgspec.json.encode(body)


def test_full_callback_begins_with_the_legacy_fields_and_keeps_its_order() -> None:
    assert full_callback() == LEGACY[:-1] + (
        b',"model_ref":"smollm2","memory_bytes":17000000000,"memory_architecture":"vram-only",'
        b'"url":"http://localhost:9090","backend":"cuda","device":1,"worker_type":"llamacpp",'
        b'"capabilities":["text-gen"],"protocol":"sse"}'
    )


@pytest.mark.parametrize("body", [pytest.param(full_callback(), id="TV-160")])
def test_a_legacy_receiver_reads_the_full_callback(body: bytes) -> None:
    expected = LegacyReadyCallback(worker_id="worker-123", vram_bytes=16_000_000_000, uri="http://localhost:9090")
    assert msgspec.json.decode(body, type=LegacyReadyCallback) == expected


@cases
def test_error_bodies(kind: str, given: list[Any], http_status: int, body: dict[str, Any]) -> None:
    error: WorkerError = getattr(errors, kind)(*given)
    assert error.http_status == http_status
    assert encode_error(error) == json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(FieldError(field="f", constraint="c", message="m"), entry("f", "c", "m"), id="TV-065"),
        pytest.param(
            FieldError(field="f", constraint="c", message="m", value=""), entry("f", "c", "m", ""), id="empty"
        ),
        pytest.param(
            refused_by_engine(
                [Violation("prompt", "context_length(4096)", "prompt has 5210 tokens; context is 4096")]
            ).errors[0],
            entry("prompt", "context_length(4096)", "prompt has 5210 tokens; context is 4096"),
            id="engine",
        ),
    ],
)
def test_value_is_absent_unless_given(error: FieldError, expected: str) -> None:
    assert msgspec.json.encode(error) == expected.encode()


def test_the_refusal_in_one_line_has_every_message() -> None:
    errors = [FieldError(field="f", constraint="c", message=message) for message in ("one", "two")]
    assert str(FieldsRefused(errors)) == "one; two"
