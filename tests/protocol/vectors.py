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


OTHER_THAN_DEFAULTS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 3,
    "repetition_penalty": 1.5,
    "min_p": 0.125,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.75,
    "repeat_last_n": 9,
    "typical_p": 0.5,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.25,
    "xtc_threshold": 0.5,
    "dry_multiplier": 0.75,
    "dry_base": 2.5,
    "dry_allowed_length": 4,
    "logit_bias": {"5": 1.5, "0": -100},
    "ignore_eos": True,
    "min_tokens": 2,
    "stop_token_ids": [8, 9],
}
"""The fields that say how tokens are drawn and stand at both doors, each with another value than its default."""


def body_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
