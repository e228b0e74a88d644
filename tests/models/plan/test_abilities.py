"""Snapshots take what a plan leaves; whoever has no drafts, no head or no cached prefixes is told the true reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.plan.rehearsed import STATE_BYTES, dry_run, info
from tests.models.plan.test_memory import CPU
from worker.config.engine import configure
from worker.config.engine_settings import Configure
from worker.config.settings import Settings
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo, Windows
from worker.models.plan.abilities import (
    COPYING_IS_SLOW,
    MAX_COPIED,
    MAX_SNAPSHOTS,
    drafts_off,
    heads_off,
    kept_of,
    obstacle,
    with_heads,
    with_snapshots,
)
from worker.models.plan.memory import Plan, plan_of, snapshot_bytes
from worker.models.plan.placement import Group
from worker.models.upstream.architectures import (
    COPYING_EACH_SNAPSHOT,
    HYBRIDS,
    NEEDED_BY_A_HEAD,
    WITH_A_HEAD,
    WITH_SNAPSHOTS,
)

PLAIN = info()
SLIDING = replace(PLAIN, architecture="gemma3", windows=Windows(128, (True, False) * 2, 64, 64))


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


CASES = [json.loads(line) for line in Path(__file__).with_name("abilities.jsonl").read_text().splitlines()]


def model_of(case: dict[str, Any]) -> ModelInfo:
    return replace(SLIDING if case.get("windows") else PLAIN, architecture=case["architecture"])


@pytest.mark.parametrize("case", [case for case in CASES if case["lacks"] == "drafts"], ids=str)
def test_the_reason_for_no_drafts_is_given(case: dict[str, Any]) -> None:
    model, asked = model_of(case), config(**case["asked"])
    found = drafts_off(model, asked, planned(model, asked)) or ""
    assert found.startswith(case["because"])
    assert bool(found) is bool(case["because"])


def test_so_is_a_lack_of_memory() -> None:
    assert drafts_off(hybrid(), config(), planned(hybrid(), config(), 0)) == (
        "snapshots of recurrent state have no room: use a smaller --parallel or --ctx-size, or free memory"
    )


def test_small_windows_are_a_reason() -> None:
    plan = plan_of(config(swa_full="off"), SLIDING, 4096)
    assert drafts_off(SLIDING, config(), plan) == "small sliding windows cannot be cut: use --swa-full on"


# ── heads ────────────────────────────────────────────────────────────────────────────────────────


N_LAYERS = len(info().head_counts_kv)
HEAD_BYTES = 500


def headed(architecture: str = "glm4moe", *, n_heads: int = 1, lacking: str = "") -> ModelInfo:
    """A model whose last layer is a head."""
    plain = info()
    names = [f"blk.{N_LAYERS - 1}.{name}" for name in NEEDED_BY_A_HEAD if name != lacking]
    own = tuple(Tensor(name, (HEAD_BYTES,), "I8", HEAD_BYTES) for name in names)
    return replace(
        plain,
        architecture=architecture,
        n_mtp_blocks=n_heads,
        tensors=(*(tensor for tensor in plain.tensors if f"blk.{N_LAYERS - 1}." not in tensor.name), *own),
    )


ON: dict[str, Any] = {"mtp": True}


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        *((headed(name), ON, None) for name in WITH_A_HEAD),
        (info(), ON, "the file has no next-token head"),
        (headed(), {}, "--mtp would load it"),
        (headed(), {**ON, "deterministic": True}, "with --deterministic nothing is drafted"),
        (headed(n_heads=2), ON, "the file has 2 next-token heads, and the worker drafts with one"),
        (headed("deepseek2"), ON, "the worker does not draft with the heads of deepseek2"),
        (headed("qwen3next"), ON, "llama.cpp keeps no snapshots of qwen3next's recurrent state, so wrong drafts could"),
        (headed("qwen3next"), {}, "llama.cpp keeps no snapshots of qwen3next's recurrent state, so wrong drafts could"),
        *(
            (
                headed(lacking=name),
                ON,
                f"the file says that it has a next-token head, but lacks blk.{N_LAYERS - 1}.{name}",
            )
            for name in NEEDED_BY_A_HEAD
        ),
    ],
)
def test_the_reason_for_no_head_is_given(model: ModelInfo, changes: dict[str, Any], expected: str | None) -> None:
    found = heads_off(model, config(**changes))
    assert (found is None) is (expected is None)
    assert (found or "").startswith(expected or "")
    assert with_heads(model, config(**changes)).loads_heads is (expected is None)


def test_hybrids_with_a_head_can_take_drafts_back() -> None:
    assert set(WITH_A_HEAD) & set(HYBRIDS) <= set(WITH_SNAPSHOTS)


def test_a_head_is_loaded_with_its_tensors() -> None:
    model = headed()
    whole = with_heads(model, config(**ON))
    assert len(whole.loaded_tensors) - len(model.loaded_tensors) == len(NEEDED_BY_A_HEAD)


# ── prefixes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", [case for case in CASES if case["lacks"] == "prefixes"], ids=str)
def test_the_reason_for_no_prefixes_is_the_model_s_own(case: dict[str, Any]) -> None:
    found = obstacle(model_of(case), swa_full=case["swa_full"], parallel=case["parallel"]) or ""
    assert found.startswith(case["because"])
    assert bool(found) is bool(case["because"])


@pytest.mark.parametrize("is_copying_worthwhile", [True, False])
@pytest.mark.parametrize("limit_bytes", [0, 10**9])
def test_nothing_is_copied_where_reading_again_takes_less(limit_bytes: int, is_copying_worthwhile: bool) -> None:
    """The reason is the first that is true: memory for it, then the warm-up's finding."""
    plan = plan_of(config(), PLAIN, 4096)
    need = dry_run(config(), PLAIN, Group((CPU,), ()), 0, plan)
    kept = kept_of(PLAIN, plan, need, limit_bytes, can_share=True, is_copying_worthwhile=is_copying_worthwhile)
    assert kept.limit_bytes == (limit_bytes if is_copying_worthwhile else 0)
    assert (kept.off_because is None) == (kept.limit_bytes > 0)
    assert (kept.off_because == COPYING_IS_SLOW) == (limit_bytes > 0 and not is_copying_worthwhile)
