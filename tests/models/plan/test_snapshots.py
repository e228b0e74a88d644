"""Snapshots of recurrent state take only what a plan leaves, and whoever has none is told why there are no drafts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.plan.rehearsed import STATE_BYTES, dry_run, info
from tests.models.plan.test_memory import CPU
from worker.config.engine import configure
from worker.config.engine_settings import Configure, DraftModelAsked
from worker.config.settings import Settings
from worker.models.facts.attention import Windows
from worker.models.facts.info import ModelInfo
from worker.models.plan.memory import Plan, plan_of, snapshot_bytes
from worker.models.plan.placement import Group
from worker.models.plan.snapshots import MAX_COPIED, MAX_SNAPSHOTS, MIN_UBATCH, drafts_off, with_snapshots
from worker.models.upstream.architectures import COPYING_EACH_SNAPSHOT, WITH_SNAPSHOTS

PLAIN = info()
SLIDING = replace(PLAIN, architecture="gemma3", windows=Windows(128, (True, False) * 2, 64, 64))
DRAFT = DraftModelAsked("d.gguf", "cpu", 8)


def hybrid(architecture: str = "lfm2") -> ModelInfo:
    return replace(PLAIN, architecture=architecture)


def config(**changes: Any) -> Configure:
    return replace(configure(Settings(), Path("m.gguf")), **changes)


def planned(model: ModelInfo, asked: Configure, room_bytes: int = 1 << 40, n_cells: int = 4096) -> Plan:
    group = Group((CPU,), ())
    plan = plan_of(asked, model, n_cells)

    def fits(larger: Plan) -> bool:
        return dry_run(asked, model, group, 0, larger).buffers.total_bytes <= room_bytes

    return with_snapshots(model, asked, plan, dry_run(asked, model, group, 0, plan), fits)


@given(
    st.sampled_from(WITH_SNAPSHOTS[:1] + WITH_SNAPSHOTS[3:10]),
    st.integers(0, 400 * STATE_BYTES),
    st.integers(1, 64),
)
def test_they_cost_neither_cells_nor_jobs_and_fit(architecture: str, room_bytes: int, steps: int) -> None:
    model, group = hybrid(architecture), Group((CPU,), ())
    plain, plan = planned(model, config(), 0, 256 * steps), planned(model, config(), room_bytes, 256 * steps)
    before, after = (dry_run(config(), model, group, 0, one) for one in (plain, plan))
    assert not plain.n_snapshots
    assert replace(plan, n_snapshots=0) == plain
    assert after.kv_bytes - before.kv_bytes == snapshot_bytes(plan, after) <= before.kv_bytes
    assert plan.n_snapshots <= (MAX_COPIED if architecture in COPYING_EACH_SNAPSHOT else MAX_SNAPSHOTS)
    assert plan == plain or after.buffers.total_bytes <= room_bytes
    assert bool(plan.n_snapshots) is (drafts_off(model, config(), plan) is None)


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        (PLAIN, {}, ""),
        (PLAIN, {"prompt_lookup": "off"}, "--prompt-lookup is off, and neither --draft-model nor --mtp drafts"),
        (PLAIN, {"prompt_lookup": "off", "draft": DRAFT}, ""),
        (PLAIN, {"deterministic": True}, "with --deterministic there are none"),
        (PLAIN, {"batch_invariant": "on"}, ""),
        (SLIDING, {}, ""),
        (hybrid(), {}, ""),
        (hybrid(), {"prompt_lookup": "off", "draft": DRAFT}, ""),
        (hybrid(), {"batch_invariant": "on"}, "with --batch-invariant on there are none: recurrent layers compute"),
        (hybrid(), {"ubatch_size": MIN_UBATCH - 1}, "snapshots of recurrent state need --ubatch-size 64 or more"),
        (hybrid(), {"batch_size": MIN_UBATCH}, "snapshots of recurrent state need --batch-size 72 or more (got 64)"),
        (hybrid("qwen3next"), {}, "llama.cpp keeps no snapshots of qwen3next's recurrent state"),
        (hybrid("mamba"), {}, "llama.cpp keeps no snapshots of mamba's recurrent state"),
        (hybrid("qwen4exp"), {}, "qwen4exp keeps an index for its KV cells, which cannot be cut"),
        (replace(PLAIN, architecture="glm-dsa"), {}, "glm-dsa keeps an index for its KV cells, which cannot be cut"),
        (replace(SLIDING, architecture="lfm2"), {}, "lfm2 has recurrent state beside sliding windows"),
    ],
)
def test_the_reason_is_given(model: ModelInfo, changes: dict[str, Any], expected: str) -> None:
    found = drafts_off(model, config(**changes), planned(model, config(**changes)))
    assert (found or "").startswith(expected)
    assert bool(found) is bool(expected)


def test_so_is_a_lack_of_memory() -> None:
    assert drafts_off(hybrid(), config(), planned(hybrid(), config(), 0)) == (
        "snapshots of recurrent state have no room: use a smaller --parallel or --ctx-size, or free memory"
    )


def test_small_windows_are_a_reason() -> None:
    plan = plan_of(config(swa_full="off"), SLIDING, 4096)
    assert drafts_off(SLIDING, config(), plan) == "small sliding windows cannot be cut: use --swa-full on"
