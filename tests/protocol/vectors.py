"""The request all vectors of the protocol notes' Appendix B vary."""

import json
from typing import Any

R0: dict[str, Any] = {
    "job_id": "test-job-123",
    "prompt": "Hello, world!",
    "max_tokens": 100,
    "temperature": 0.7,
    "seed": 42,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "stop": [],
    "min_p": 0.0,
}


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in R0.items() if name != field}


def body_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
