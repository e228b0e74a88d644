"""/health describes the current engine, and says that a successor has not been examined yet."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from tests.loops import on_a_loop
from tests.server.front.rehearsal import FACTS, Stage, fronted
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.front.admission import EngineStatus
from worker.server.front.state import Front
from worker.wire.jobs import StepDone
from worker.wire.load import Amx, Attention, BatchInvariance, Determinism, PrefixCacheFound, Tried

TRIED = Tried(ways=("in one step",), widths=(1, 2), prompts=5, row_multiple=2, most_rows=4)


def verdict(name: str, differences: tuple[str, ...] = (), tried: Tried | None = None) -> dict[str, Any]:
    return {
        "determinism": name,
        "determinism_differences": differences,
        "determinism_tried": msgspec.to_builtins(tried),
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"determinism": None}, verdict("untested")),
        ({"determinism": Determinism(is_same=True)}, verdict("same")),
        ({"determinism": Determinism(is_same=True, tried=TRIED)}, verdict("same", tried=TRIED)),
        ({"determinism": Determinism(is_same=False, differences=("why",))}, verdict("differs", ("why",))),
        *(
            (
                {"batch_invariance": BatchInvariance(kept=kept, why="why")},
                {"batch_invariant": {"kept": kept, "why": "why"}},
            )
            for kept in (False, True)
        ),
        *(({"attention": where}, {"attention": where}) for where in (*get_args(Attention), None)),
        *(
            ({"amx": amx}, {"amx": msgspec.structs.asdict(amx)})
            for amx in (Amx(), Amx(processor=True), Amx(processor=True, build=True, tile_bytes=70_000_000))
        ),
    ],
)
@on_a_loop
async def test_what_the_engine_found_is_reported(changes: dict[str, Any], told: dict[str, Any]) -> None:
    """A verdict has its reasons, and what was tried."""
    stage = Stage()
    await stage.open(replace(FACTS, **changes))
    body = msgspec.to_builtins(fronted(stage).health())
    assert {name: body[name] for name in told} == told
    await stage.client.close()


@on_a_loop
async def test_the_prefix_cache_is_reported_as_the_last_step_left_it() -> None:
    stage = Stage()
    await stage.open()
    front = fronted(stage)
    front._engine_status = EngineStatus(step=StepDone(prefix_tokens=300, prefix_bytes=4000))
    none = {"restored_tokens": 0, "restored_bytes": 0, "checkpoint_bytes": 0, "checkpoint_stride": 0}
    expected = {"tokens": 300, "bytes": 4000, "limit_bytes": 4096, "off_because": None, **none}
    assert msgspec.to_builtins(front.health().prefix_cache) == expected
    await stage.client.close()


@on_a_loop
async def test_before_a_model_is_loaded_nothing_is_made_up() -> None:
    body = msgspec.to_builtins(Front(Settings(model="m.gguf"), Metrics("w-1")).health())
    assert set(body["prefix_cache"].values()) == {0, None}
    assert (body["prefill_chunk"], body["deterministic"]) == (None, False)
    assert body.items() >= verdict("untested").items()


@on_a_loop
async def test_a_successor_does_not_have_its_predecessors_prefixes() -> None:
    front = Front(Settings(model="m.gguf"), Metrics("w-1"))
    front.on_report(PrefixCacheFound(n_parts=2, n_tokens=30, n_bytes=400))
    front.on_report(StepDone(cells_used=9, prefix_tokens=300, prefix_bytes=4000))
    cache = front.health().prefix_cache
    assert (cache.restored_tokens, cache.restored_bytes, cache.tokens) == (30, 400, 300)
    assert b'worker_prefix_cache_bytes{worker_id="w-1"} 4000.0' in front.scrape(None)[0]
    front.on_restarting("it was ended by SIGKILL", "")
    cache = front.health().prefix_cache
    assert (cache.restored_tokens, cache.tokens) == (0, 0)
    for series in (b"worker_prefix_cache_bytes", b"worker_prefix_cache_tokens", b"worker_kv_cells_used"):
        assert series + b'{worker_id="w-1"} 0.0' in front.scrape(None)[0]
