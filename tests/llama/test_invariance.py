"""`--batch-invariant` decides from a file, a build and the flags: always the same, and only what costs nothing.

Settings that change numbers are reported, on made-up devices; tests/parity/test_setups.py has the real ones.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.llama.test_repack import layout, matrix, model
from tests.models.plan.test_placement import CPU, GIB, MODEL, gpu, needs, placed, with_room_for
from tests.models.plan.test_placement import config as placed_config
from tests.server.front.rehearsal import CONFIG as REHEARSED
from worker.config.engine_settings import Configure
from worker.llama.invariance import PRODUCT_TYPES, Rule, has_own_products, numerics_of, rule_of
from worker.llama.repack import LaidOut
from worker.models.facts.gguf import Tensor
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device
from worker.wire.load import BatchInvariance, Numerics

CONFIG = replace(REHEARSED, cache_type_k="auto", flash_attn="auto", swa_full="auto")


def as_in_the_file(_: Tensor) -> LaidOut | None:
    return None


FLAGS: dict[str, Any] = {
    "is_on_gpu": False,
    "is_without_flash": False,
    "is_in_order": True,
    "own_types": PRODUCT_TYPES,
    "layout": as_in_the_file,
}
ON_GPU, WITHOUT_PRODUCTS = {"is_on_gpu": True}, {"own_types": ()}


def rule(
    *types: str,
    config: Configure = CONFIG,
    name: str = "attn_q",
    dims: tuple[int, ...] = (256, 32),
    flags: dict[str, Any] | None = None,
    **changes: Any,
) -> Rule:
    info = model(*(matrix(kind, f"blk.{at}.{name}.weight", dims) for at, kind in enumerate(types)))
    return rule_of(config, replace(info, **changes), **FLAGS | (flags or {}))


def found(*types: str, config: Configure = CONFIG, **changes: Any) -> BatchInvariance:
    return rule(*types, config=config, **changes).invariance(config)


def test_it_is_kept_where_every_product_is_ours_and_attention_is() -> None:
    assert found(*sorted(PRODUCT_TYPES)[:4]) == BatchInvariance(kept=True, why="it costs nothing here")
    assert found(*sorted(PRODUCT_TYPES)[4:]).kept


@pytest.mark.parametrize(
    ("types", "changes", "why"),
    [
        *((["Q4_K", odd], {}, f"products with {odd} depend on") for odd in ("Q2_K", "IQ4_NL", "F16", "F32")),
        (["Q4_K"], {"name": "ffn_up_exps"}, "depend on the number of rows"),
        (["Q4_K"], {"name": "attn_k_b", "dims": (256, 32, 8)}, "depend on the number of rows"),
        (["Q4_K"], {"name": "attn_k_b", "dims": (256, 32, 1)}, "it costs nothing here"),
        (["Q4_K"], {"key_length": 100, "value_length": 112}, "attention with such heads is ggml's own"),
        (["Q4_K"], {"key_length": 64, "value_length": 72}, "attention with such heads is ggml's own"),
        (["Q4_K"], {"head_counts": (71,) * 4, "head_counts_kv": (1,) * 4}, "attention with such heads is ggml's own"),
        (["Q4_K"], {"flags": {"is_in_order": False}}, "order"),
        (["Q4_K"], {"architecture": "lfm2"}, "recurrent"),
        (["Q4_K"], {"config": replace(CONFIG, flash_attn="off")}, "flash attention"),
        (["Q4_K"], {"config": replace(CONFIG, cache_type_k="q8_0")}, "KV cache"),
        (["Q4_K"], {"config": replace(CONFIG, cache_type_v="bf16")}, "KV cache"),
        (["Q4_K"], {"flags": WITHOUT_PRODUCTS}, "build"),
        (["Q4_K"], {"flags": ON_GPU}, "GPU"),
        (["Q4_K", "Q5_0"], {"flags": {"layout": layout}}, "it costs nothing here"),
        (["IQ4_XS"], {}, "depend on the number of rows"),
    ],
)
def test_matrices_heads_cells_flags_a_build_or_a_gpu_may_stand_against_it(
    types: list[str], changes: dict[str, Any], why: str
) -> None:
    """Weights in tiles need no products of ours."""
    decided = found(*types, **changes)
    assert why in decided.why
    assert decided.kept == (why == "it costs nothing here")


@pytest.mark.parametrize("flags", [{}, WITHOUT_PRODUCTS])
@pytest.mark.parametrize("kind", ["Q4_K", "F16"])
def test_what_is_asked_for_is_what_is_reported(kind: str, flags: dict[str, Any]) -> None:
    """The self-test finds out if `on` holds."""
    for asked in ("on", "off"):
        decided = found(kind, config=replace(CONFIG, batch_invariant=asked), flags=flags)
        assert decided == BatchInvariance(kept=asked == "on", why=f"--batch-invariant {asked}")
    decided = found(kind, config=replace(CONFIG, deterministic=True), flags=flags)
    assert decided == BatchInvariance(kept=True, why="--deterministic")


@pytest.mark.parametrize(
    ("types", "changes", "word"),
    [
        (["Q4_K"], {}, "same"),
        (["Q4_K", "F16"], {}, "differs"),
        (["Q4_K"], {"flags": ON_GPU}, "differs"),
        (["Q4_K"], {"architecture": "lfm2"}, "differs"),
        (["Q4_K"], {"config": replace(CONFIG, cache_type_k="q8_0")}, "untested"),
        (["F16"], {"config": replace(CONFIG, batch_invariant="off")}, "differs"),
        (["Q4_K"], {"config": replace(CONFIG, batch_invariant="off")}, "same"),
        (["Q8_0"], {"flags": WITHOUT_PRODUCTS}, "untested" if has_own_products() else "differs"),
        (["Q8_0"], {"name": "ffn_up_exps"}, "untested"),
    ],
)
def test_the_verdict_is_untested_where_numbers_may_be_the_same_in_spite_of_an_obstacle(
    types: list[str], changes: dict[str, Any], word: str
) -> None:
    verdict = rule(*types, **changes).determinism
    assert ("untested" if verdict is None else "same" if verdict.is_same else "differs") == word
    assert verdict is None or verdict.is_same is not bool(verdict.differences)


# ── what is reported ─────────────────────────────────────────────────────────────────────────────

L4, ANOTHER_L4 = (replace(gpu(80 * GIB, index), description="NVIDIA L4") for index in (0, 1))
H100 = replace(gpu(40 * GIB, 1), description="NVIDIA H100")


def reported(
    available: list[Device], sizes: BufferSizes | None = None, *, is_without_flash: bool = False, **changes: Any
) -> Numerics:
    asked = placed_config(threads=3, **changes)
    sizes = sizes or BufferSizes()
    return numerics_of(asked, MODEL, placed(available, **changes), sizes, is_without_flash=is_without_flash)


def test_a_cpu_has_no_name_and_a_gpu_has() -> None:
    assert reported([CPU]).device == reported([replace(CPU, description="another processor")]).device == "cpu"
    assert reported([L4, CPU]).device == "cuda NVIDIA L4"
    assert reported([L4, H100, CPU], split_mode="layer").device == "cuda NVIDIA L4 + NVIDIA H100"


def test_auto_is_reported_as_its_result() -> None:
    for each in (reported([CPU], cache_type_k="auto"), reported([L4, CPU])):
        assert (each.cache_type_k, each.flash_attn) == ("f16", True)
    in_one_order = reported([CPU], cache_type_k="auto", batch_invariant="on")
    assert in_one_order.cache_type_k == ("f16" if has_own_products() else "bf16")
    assert not reported([L4, CPU], is_without_flash=True).flash_attn
    assert not reported([CPU], flash_attn="off").flash_attn


def test_layers_on_the_gpu_are_counted() -> None:
    assert reported([L4, CPU]).gpu_layers == 9
    assert reported([with_room_for(needs(5)), CPU]).gpu_layers == 5
    assert reported([CPU]).gpu_layers == 0


@pytest.mark.parametrize(
    ("gpus", "mode", "shares"),
    [
        ([L4, ANOTHER_L4], "layer", ""),
        ([L4, ANOTHER_L4], "row", "50 %, 50 %"),
        ([L4, H100], "layer", "67 %, 33 %"),
    ],
)
def test_shares_are_reported_where_numbers_depend_on_them(gpus: list[Device], mode: str, shares: str) -> None:
    found = reported([*gpus, CPU], split_mode=mode)
    assert (found.split_mode, found.gpu_shares) == (mode, shares)
    assert reported([*gpus, CPU]).split_mode == "none"


def test_threads_are_reported_where_a_cpu_adds_attention_up_with_them() -> None:
    """ggml's own attention does; ours gives the same sums with any number of threads."""
    partly = [with_room_for(needs(5)), CPU]
    assert [reported([CPU]).threads, reported(partly).threads] == [None if has_own_products() else 3] * 2
    others = [reported([CPU], cache_type_k="bf16"), reported([CPU], flash_attn="off"), reported([L4, CPU])]
    others.append(reported([CPU], cache_type_k="q8_0", cache_type_v="q8_0"))
    assert [each.threads for each in others] == [None] * 4


def test_tiles_are_reported_where_a_part_of_the_weights_lies_in_them() -> None:
    tiles, ordinary = Buffer("AMX", "model", 1), Buffer("CPU", "model", 1)
    assert reported([CPU], BufferSizes((ordinary, tiles))).tiles
    assert not reported([CPU], BufferSizes((ordinary, Buffer("CPU_REPACK", "model", 1)))).tiles
