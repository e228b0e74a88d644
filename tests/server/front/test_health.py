"""/health describes the current engine, and says that a successor has not been examined yet."""

import asyncio
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace as replaced

from tests.loops import on_a_loop
from tests.server.front.rehearsal import FACTS, Stage
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.front.admission import EngineStatus
from worker.server.front.state import Front
from worker.wire.jobs import StepDone
from worker.wire.load import Amx, Attention, BatchInvariance, Determinism, Loaded, PrefixCacheFound, Tried

SETTINGS = Settings(model="m.gguf", worker_id="w-1")


def shown(settings: Settings = SETTINGS, facts: Loaded = FACTS, **engine: Any) -> dict[str, Any]:
    async def play() -> Any:
        stage = Stage()
        await stage.open(facts)
        front = Front(settings, Metrics("w-1"))
        front.open(stage.client)
        front._engine_status = EngineStatus(**engine)
        await stage.client.close()
        return msgspec.to_builtins(front.health())

    body: dict[str, Any] = asyncio.run(play())
    return body


def chosen(body: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(body[key] for key in ("prefill_chunk", "deterministic", "determinism", "determinism_differences"))


def test_the_keys_of_the_protocol_come_first_and_ours_after_them() -> None:
    keys = list(shown())
    assert keys[:3] == ["status", "vram_bytes", "worker_id"]
    ours = ["parity", "prefill_chunk", "prefix_cache", "deterministic", "determinism", "determinism_differences"]
    ours += ["determinism_tried", "drafts", "draft_model", "amx", "batch_invariant", "kernels", "attention"]
    assert keys[keys.index("queue_depth") + 1 :] == ours


def verdict(found: Determinism | None) -> tuple[Any, ...]:
    body = shown(facts=replaced(FACTS, determinism=found))
    return body["determinism"], body["determinism_differences"], body["determinism_tried"]


def test_the_verdict_is_reported_with_its_reasons_and_what_was_tried() -> None:
    tried = Tried(ways=("in one step",), widths=(1, 2), prompts=5, row_multiple=2, most_rows=4)
    assert verdict(None) == ("untested", (), None)
    assert verdict(Determinism(is_same=True)) == ("same", (), None)
    assert verdict(Determinism(is_same=True, tried=tried)) == ("same", (), msgspec.to_builtins(tried))
    assert verdict(Determinism(is_same=False, differences=("for a reason",))) == ("differs", ("for a reason",), None)


def test_the_prefix_cache_is_reported_as_the_last_step_left_it() -> None:
    body = shown(step=StepDone(prefix_tokens=300, prefix_bytes=4000))
    none = {"restored_tokens": 0, "restored_bytes": 0, "checkpoint_bytes": 0, "checkpoint_stride": 0}
    assert body["prefix_cache"] == {"tokens": 300, "bytes": 4000, "limit_bytes": 4096, "off_because": None, **none}


@on_a_loop
async def test_what_was_found_of_earlier_engines_is_reported_until_this_one_has_died() -> None:
    found = PrefixCacheFound(n_parts=2, n_tokens=300, n_bytes=4000)
    front = Front(SETTINGS, Metrics("w-1"))
    front.on_report(found)
    assert (front.health().prefix_cache.restored_tokens, front.health().prefix_cache.restored_bytes) == (300, 4000)
    front.on_restarting("it was ended by SIGKILL", "")
    assert front.health().prefix_cache.restored_tokens == 0


@on_a_loop
async def test_before_a_model_is_loaded_nothing_is_made_up() -> None:
    front = Front(SETTINGS, Metrics("w-1"))
    body = msgspec.to_builtins(front.health())
    assert set(body["prefix_cache"].values()) == {0, None}
    assert chosen(body) == (None, False, "untested", ())


@on_a_loop
async def test_a_successor_does_not_have_its_predecessors_prefixes() -> None:
    front = Front(SETTINGS, Metrics("w-1"))
    front.on_report(StepDone(cells_used=9, prefix_tokens=300, prefix_bytes=4000))
    assert b'worker_prefix_cache_bytes{worker_id="w-1"} 4000.0' in front.scrape(None)[0]
    front.on_restarting("it was ended by SIGKILL", "")
    assert front.health().prefix_cache.tokens == 0
    for series in (b"worker_prefix_cache_bytes", b"worker_prefix_cache_tokens", b"worker_kv_cells_used"):
        assert series + b'{worker_id="w-1"} 0.0' in front.scrape(None)[0]


@pytest.mark.parametrize("is_kept", [False, True])
def test_it_says_whether_numbers_depend_on_company_and_why(*, is_kept: bool) -> None:
    invariance = BatchInvariance(kept=is_kept, why="for a reason")
    facts = msgspec.structs.replace(FACTS, batch_invariance=invariance)
    assert shown(facts=facts)["batch_invariant"] == {"kept": is_kept, "why": "for a reason"}


@pytest.mark.parametrize("attention", [*get_args(Attention), None])
def test_it_says_where_attention_is_computed(attention: Attention | None) -> None:
    assert shown(facts=msgspec.structs.replace(FACTS, attention=attention))["attention"] == attention


@pytest.mark.parametrize("amx", [Amx(), Amx(processor=True), Amx(processor=True, build=True, tile_bytes=70_000_000)])
def test_it_says_what_is_made_of_the_processors_tiles(amx: Amx) -> None:
    assert shown(facts=msgspec.structs.replace(FACTS, amx=amx))["amx"] == msgspec.structs.asdict(amx)
