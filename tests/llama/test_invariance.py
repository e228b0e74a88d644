"""`--batch-invariant` decides from a file, a build and the flags: always the same, and only what costs nothing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.llama.test_repack import layout, matrix, model
from tests.server.front.rehearsal import CONFIG as REHEARSED
from worker.config.engine_settings import Configure
from worker.llama.invariance import PRODUCT_TYPES, Rule, has_own_products, rule_of
from worker.llama.repack import LaidOut
from worker.models.facts.gguf import Tensor
from worker.wire.load import BatchInvariance

CONFIG = replace(REHEARSED, cache_type_k="auto", flash_attn="auto", swa_full="auto")


def as_in_the_file(_: Tensor) -> LaidOut | None:
    return None


def rule(
    *types: str,
    config: Configure = CONFIG,
    has_products: bool = True,
    is_on_gpu: bool = False,
    is_in_order: bool = True,
    name: str = "attn_q",
    dims: tuple[int, ...] = (256, 32),
    **changes: Any,
) -> Rule:
    info = model(*(matrix(kind, f"blk.{at}.{name}.weight", dims) for at, kind in enumerate(types)))
    return rule_of(
        config,
        replace(info, **changes),
        is_on_gpu=is_on_gpu,
        is_without_flash=False,
        is_in_order=is_in_order,
        own_types=PRODUCT_TYPES if has_products else (),
        layout=as_in_the_file,
    )


def found(*types: str, config: Configure = CONFIG, **changes: Any) -> BatchInvariance:
    return rule(*types, config=config, **changes).invariance(config)


def test_it_is_kept_where_every_product_is_ours_and_attention_is() -> None:
    assert found(*sorted(PRODUCT_TYPES)[:4]) == BatchInvariance(kept=True, why="it costs nothing here")
    assert found(*sorted(PRODUCT_TYPES)[4:]).kept


@pytest.mark.parametrize("odd", ["Q2_K", "IQ4_NL", "F16", "F32"])
def test_one_matrix_of_another_type_is_enough(odd: str) -> None:
    decided = found("Q4_K", odd, "Q6_K")
    assert decided == BatchInvariance(kept=False, why=f"products with {odd} depend on the number of rows")


def test_experts_and_other_stacks_are_multiplied_by_ggml() -> None:
    assert not found("Q4_K", name="ffn_up_exps").kept
    assert not found("Q4_K", name="attn_k_b", dims=(256, 32, 8)).kept
    assert found("Q4_K", name="attn_k_b", dims=(256, 32, 1)).kept


@pytest.mark.parametrize(
    "heads",
    [
        {"key_length": 100, "value_length": 112},
        {"key_length": 64, "value_length": 72},
        {"head_counts": (71,) * 4, "head_counts_kv": (1,) * 4},
    ],
    ids=str,
)
def test_attention_with_some_heads_is_ggmls_own(heads: dict[str, Any]) -> None:
    assert found("Q4_K", **heads).why == "attention with such heads is ggml's own"


def test_cells_in_another_order_stand_against_it() -> None:
    assert "order" in found("Q4_K", is_in_order=False).why
    assert "recurrent" in found("Q4_K", architecture="lfm2").why


def test_weights_in_tiles_need_no_products_of_ours() -> None:
    info = model(matrix("Q4_K"), matrix("Q5_0", "blk.1.attn_q.weight"))
    flags: dict[str, Any] = {
        "is_on_gpu": False,
        "is_without_flash": False,
        "is_in_order": True,
        "own_types": PRODUCT_TYPES,
    }
    assert rule_of(CONFIG, info, **flags, layout=layout).obstacle is None
    in_tiles = model(matrix("IQ4_XS"))
    assert rule_of(CONFIG, in_tiles, **flags, layout=as_in_the_file).obstacle is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flash_attn": "off"}, "flash attention"),
        ({"cache_type_k": "q8_0"}, "KV cache"),
        ({"cache_type_v": "bf16"}, "KV cache"),
    ],
)
def test_flags_may_stand_against_it(change: dict[str, Any], reason: str) -> None:
    decided = found("Q4_K", config=replace(CONFIG, **change))
    assert not decided.kept
    assert reason in decided.why


def test_a_build_or_a_gpu_may_stand_against_it() -> None:
    assert "build" in found("Q4_K", has_products=False).why
    assert "GPU" in found("Q4_K", is_on_gpu=True).why


@pytest.mark.parametrize("has_products", [False, True])
@pytest.mark.parametrize("kind", ["Q4_K", "F16"])
def test_what_is_asked_for_is_what_is_reported(kind: str, *, has_products: bool) -> None:
    """The self-test finds out if `on` holds."""
    for asked in ("on", "off"):
        decided = found(kind, config=replace(CONFIG, batch_invariant=asked), has_products=has_products)
        assert decided == BatchInvariance(kept=asked == "on", why=f"--batch-invariant {asked}")
    decided = found(kind, config=replace(CONFIG, deterministic=True), has_products=has_products)
    assert decided == BatchInvariance(kept=True, why="--deterministic")


@pytest.mark.parametrize(
    ("types", "changes", "word"),
    [
        (["Q4_K"], {}, "same"),
        (["Q4_K", "F16"], {}, "differs"),
        (["Q4_K"], {"is_on_gpu": True}, "differs"),
        (["Q4_K"], {"architecture": "lfm2"}, "differs"),
        (["Q4_K"], {"config": replace(CONFIG, cache_type_k="q8_0")}, "untested"),
        (["F16"], {"config": replace(CONFIG, batch_invariant="off")}, "differs"),
        (["Q4_K"], {"config": replace(CONFIG, batch_invariant="off")}, "same"),
        (["Q8_0"], {"has_products": False}, "untested" if has_own_products() else "differs"),
        (["Q8_0"], {"name": "ffn_up_exps"}, "untested"),
    ],
)
def test_the_verdict_is_untested_where_numbers_may_be_the_same_in_spite_of_an_obstacle(
    types: list[str], changes: dict[str, Any], word: str
) -> None:
    verdict = rule(*types, **changes).determinism
    assert ("untested" if verdict is None else "same" if verdict.is_same else "differs") == word
    assert verdict is None or verdict.is_same is not bool(verdict.differences)
