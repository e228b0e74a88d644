"""The dry run says what the load allocates, for every kind of memory; and what it cannot read is one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parity.setups import cpu
from tests.llama.random_models import (
    GEMMA,
    HYBRID,
    NAMED_ONLY,
    PLAIN,
    RECURRENT,
    SLIDING,
    SLIDING_ONLY,
    Kind,
    write_random,
)
from tests.llama.tiny import write_tiny
from tests.models.loading.test_load import configuration
from tests.server.front.rehearsal import FACTS
from tools import made_architectures
from worker.config.engine_settings import Configure
from worker.errors import ModelLoadFailed
from worker.llama.library import open_library
from worker.models.facts.info import read_info
from worker.models.loading.load import load_runner
from worker.models.loading.places import MAX_CELLS, DryRun, Places, places_of, plan_here
from worker.models.plan.memory import Need, Plan, plan_of
from worker.models.plan.placement import Group
from worker.wire.encoding import encode_json

PLENTY = 1 << 45
ROUNDED_BYTES = 2**20 // 100
"""The library prints hundredths of a MiB of each buffer."""

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {"ctx_size": 4096, "parallel": 3},
    "no flash attention": {"ctx_size": 700, "parallel": 3, "flash_attn": "off"},
    "small windows": {"ctx_size": 4096, "parallel": 3, "swa_full": "off"},
    "fixed chunks": {"ctx_size": 700, "parallel": 1, "deterministic": True},
}


def check_as_loaded(config: Configure) -> None:
    placement = plan_here(config, PLENTY).served
    loaded = load_runner(config, lambda _: None)
    try:
        sizes = loaded.runner.sizes + loaded.drafting.sizes
        off_plan = loaded.facts.offload.off_plan
    finally:
        loaded.runner.close()
        open_library().on_log = None
    # A file is mapped up to the last weight that is used from it, not to one behind that is laid out anew.
    behind = sizes.of_kind("model", ["CPU_REPACK"]) if sizes.of_kind("model", ["CPU_Mapped"]) else 0
    over = placement.host.weights_bytes - sizes.of_kind("model")
    assert -2 * ROUNDED_BYTES <= over <= behind + 2 * ROUNDED_BYTES
    taken = sum(one.size_bytes for one in sizes.buffers if one.kind.endswith(("KV", "RS", "state")))
    assert placement.need.kv_bytes == pytest.approx(taken, abs=6 * ROUNDED_BYTES)
    assert placement.need.buffers.of_kind("compute") == pytest.approx(sizes.of_kind("compute"), abs=3 * ROUNDED_BYTES)
    assert off_plan == ()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", [PLAIN, SLIDING, HYBRID], ids=str)
def test_the_plan_is_what_the_library_allocates(tmp_path: Path, kind: Kind, setting: str) -> None:
    if kind is SLIDING and setting == "fixed chunks":
        setting = "small windows"
    check_as_loaded(configuration(write_random(tmp_path / "m.gguf", kind), **SETTINGS[setting]))


@pytest.mark.long
@pytest.mark.parametrize("kind", [RECURRENT, SLIDING_ONLY, GEMMA, NAMED_ONLY], ids=str)
def test_it_is_for_other_kinds_of_memory_too(tmp_path: Path, kind: Kind) -> None:
    check_as_loaded(configuration(write_random(tmp_path / "m.gguf", kind), **SETTINGS["defaults"]))


@pytest.mark.long
@pytest.mark.parametrize("name", made_architectures.KINDS)
def test_it_is_for_every_made_architecture(tmp_path: Path, name: str) -> None:
    path = made_architectures.write_kind(tmp_path / "made.gguf", made_architectures.KINDS[name])
    check_as_loaded(configuration(path, **SETTINGS["defaults"], mtp="mtp" in name))


@pytest.mark.model
@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_it_is_for_the_default_model_and_types_of_cells(default_model: Path, cache_type: str) -> None:
    types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
    check_as_loaded(configuration(default_model, **{**SETTINGS["defaults"], **types, "ubatch_size": 512}))


# ── what is not really allocated ─────────────────────────────────────────────────────────────────


def need(path: Path, plan: Plan, available_bytes: int = PLENTY) -> Need:
    dry_run = DryRun(available_bytes, repacks=True)
    return dry_run(configuration(path), read_info(path), Group((cpu(),), ()), 0, plan)


def test_states_that_have_no_room_are_counted_and_not_allocated(tmp_path: Path) -> None:
    path = write_random(tmp_path / "m.gguf", HYBRID)
    plan = replace(plan_of(configuration(path), read_info(path), 4096), parallel=7, n_snapshots=3)
    found, poor = need(path, plan), need(path, plan, available_bytes=0)
    assert poor.buffers.of_kind("RS") == found.buffers.of_kind("RS") > 0
    assert poor.buffers.of_kind("KV") == found.buffers.of_kind("KV") > 0
    assert poor.checkpoint_bytes == found.checkpoint_bytes > 0


@pytest.mark.parametrize("n_more", [256, 2**30])
def test_cells_beyond_the_most_that_are_listed_grow_in_proportion(tmp_path: Path, n_more: int) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    plan = plan_of(configuration(path), read_info(path), MAX_CELLS)
    most, beyond = need(path, plan), need(path, replace(plan, n_cells=MAX_CELLS + n_more))
    cell_bytes = most.buffers.of_kind("KV") // MAX_CELLS
    assert beyond.buffers.of_kind("KV") - most.buffers.of_kind("KV") == n_more * cell_bytes
    assert beyond.buffers.of_kind("model") == most.buffers.of_kind("model")


# ── the process ──────────────────────────────────────────────────────────────────────────────────


def same(one: Places, other: Places) -> bool:
    """True but for what is free on the devices, which changes."""
    first, second = one.served, other.served
    return first == replace(second, group=first.group) and first.device.name == second.device.name


def test_a_process_of_its_own_plans_the_same(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    config = configuration(path)
    assert same(places_of(config, PLENTY), plan_here(config, PLENTY))


def after(config: Configure, places: Places) -> Configure:
    """The configuration of a successor of an engine with these places."""
    return replace(config, predecessor=msgspec.structs.replace(FACTS, places=encode_json(places)))


def test_a_successor_has_its_predecessors_places_whatever_memory_looks_like_by_then(tmp_path: Path) -> None:
    config = configuration(write_tiny(tmp_path / "tiny.gguf"))
    places = places_of(config, PLENTY)
    assert same(places_of(after(config, places), 0), places)


def test_a_successor_gets_the_same_shares_to_the_last_bit(tmp_path: Path) -> None:
    config = configuration(write_tiny(tmp_path / "tiny.gguf"))
    places = plan_here(config, PLENTY)
    shared = replace(places.served, group=Group(places.served.group.devices, (1 / 3, 0.1 + 0.2, 1e-7)))
    found = places_of(after(config, replace(places, served=shared)), 0)
    assert found.served.group.shares == shared.group.shares


def test_a_device_that_has_gone_is_named(tmp_path: Path) -> None:
    config = configuration(write_tiny(tmp_path / "tiny.gguf"))
    places = places_of(config, PLENTY)
    gone = replace(places.served.device, name="CUDA7", description="a card")
    moved = Places(places.kernels, replace(places.served, group=Group((gone,), (1.0,))))
    with pytest.raises(ModelLoadFailed, match=r"CUDA7 \(a card\) is no longer there"):
        places_of(after(config, moved), PLENTY)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a scaling that it does not know": ({"rope.scaling.type": "su"}, "llama.cpp cannot compute with this model: "),
    "too many blocks": ({"block_count": 513}, "llama.cpp cannot compute with this model: llama-model.cpp:"),
    "experts of none": ({"expert_used_count": 1}, "llama.cpp cannot compute with this model: "),
    "a missing tensor": ({"block_count": 2}, "cannot be loaded: "),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_model_over_which_the_library_ends_its_process_is_one_line(tmp_path: Path, kind: str) -> None:
    changes, says = BAD[kind]
    path = write_tiny(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(ModelLoadFailed) as caught:
        places_of(configuration(path), PLENTY)
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > len(f"{path}: {says}")
