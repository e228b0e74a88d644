"""Settings that change nothing here are named with the reason, and those that count are not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.front.rehearsal import FACTS
from worker.config.combinations import idle_after_load, idle_before_load
from worker.config.settings import Settings
from worker.wire.load import Drafts, HeadFacts, Loaded, ModelFacts

LOADED = msgspec.structs.replace(
    FACTS,
    parallel=2,
    context_length=512,
    n_cells=1024,
    batch_size=2048,
    prefix_cache_bytes=1,
    backend="cpu",
    model=ModelFacts(chat_template="{{ messages }}"),
)


def facts(**changes: Any) -> Loaded:
    return msgspec.structs.replace(LOADED, **changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"require_full_offload": True}, []),
        ({"require_full_offload": True, "device": "cpu"}, ["--require-full-offload"]),
        ({"deterministic": True}, []),
        ({"itl_target_ms": 40}, []),
        ({"itl_target_ms": 40, "deterministic": True}, ["--itl-target-ms 40"]),
        ({"scheduling": "first-come"}, []),
        ({"scheduling": "first-come", "deterministic": True}, ["--scheduling first-come"]),
        ({"advertise_url": "http://a:1", "callback_url": "http://b:1"}, []),
        ({"advertise_url": "http://a:1"}, []),  # requests for the host `a` are answered
        ({"advertise_url": "http://a:1", "api_key": "k"}, ["--advertise-url"]),
        ({"allowed_host": ("a.example", "*.b.example")}, []),
        ({"allowed_host": ("a.example", "*"), "api_key": "k"}, ["--allowed-host a.example *"]),
        ({"legacy_callback_body": True}, ["--legacy-callback-body"]),
        ({"kv_events": "tcp://127.0.0.1:0", "kv_events_topic": "a", "kv_events_public": True}, []),
        ({"kv_events_topic": "a", "kv_events_public": True}, ["--kv-events-topic a", "--kv-events-public"]),
        ({"draft_model": "d.gguf", "draft_device": "cpu", "draft_max": 4}, []),
        ({"draft_device": "cpu", "draft_max": 4}, ["--draft-device cpu", "--draft-max 4"]),
    ],
)
def test_what_the_settings_alone_make_idle_is_reported_before_the_load(
    changes: dict[str, Any], told: list[str]
) -> None:
    assert [setting for setting, _ in idle_before_load(replace(Settings(), **changes))] == told


@pytest.mark.parametrize(
    ("changes", "found", "told"),
    [
        ({}, {}, []),
        ({"ctx_size": 1024}, {}, []),
        ({"ctx_size": 1025}, {}, ["--ctx-size 1025"]),
        ({"max_tokens_in": 511}, {}, []),
        ({"max_tokens_in": 512}, {}, ["--max-tokens-in 512"]),
        ({"max_prompt_chars": 32_768}, {}, []),
        ({"max_prompt_chars": 32_769}, {}, ["--max-prompt-chars 32769"]),
        ({"max_prompt_chars": 131_072}, {"context_length": 8192}, []),
        ({"mtp": True}, {}, ["--mtp"]),
        ({"mtp": True}, {"drafts": Drafts(next_token_head=HeadFacts(off_because="it lacks a matrix"))}, ["--mtp"]),
        ({"mtp": True}, {"drafts": Drafts(next_token_head=HeadFacts(memory_bytes=5))}, []),
        ({}, {"drafts": Drafts(next_token_head=HeadFacts(off_because="--mtp would load it"))}, []),
        ({"batch_size": 4}, {"batch_size": 4}, []),
        ({"batch_size": 4}, {"batch_size": 19}, ["--batch-size 4"]),
        ({"prefix_cache_mb": "5"}, {}, []),
        ({"prefix_cache_mb": "5"}, {"prefix_cache_bytes": 0}, ["--prefix-cache-mb 5"]),
        ({"prefix_cache_mb": "0"}, {"prefix_cache_bytes": 0}, []),
        ({"prefix_cache_dir": Path("/c")}, {}, []),
        (
            {"prefix_cache_dir": Path("/c")},
            {"prefix_cache_bytes": 0, "prefix_cache_off": "mamba has recurrent state"},
            ["--prefix-cache-dir /c"],
        ),
        ({"swa_full": "off"}, {}, ["--swa-full off"]),
        ({"swa_full": "off"}, {"swa_full": False}, []),
        ({"split_mode": "layer"}, {}, ["--split-mode layer"]),
        ({"split_mode": "layer"}, {"backend": "cuda"}, []),
        ({"no_fenced_calls": True, "keep_billing_block": True}, {}, []),
        (
            {"no_fenced_calls": True, "keep_billing_block": True, "reasoning_field": "both"},
            {"model": ModelFacts(chat_template=None)},
            ["--no-fenced-calls", "--keep-billing-block", "--reasoning-field both"],
        ),
    ],
)
def test_what_the_model_and_the_machine_make_idle_is_reported_after_the_load(
    changes: dict[str, Any], found: dict[str, Any], told: list[str]
) -> None:
    idle = list(idle_after_load(replace(Settings(), **changes), facts(**found)))
    assert [setting for setting, _ in idle] == told
    assert all(reason for _, reason in idle)
