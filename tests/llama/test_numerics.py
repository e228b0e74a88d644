"""The report of settings that change numbers, on made-up devices; tests/parity/test_setups.py has the real ones."""

from dataclasses import replace
from typing import Any

import pytest

from tests.models.plan.test_placement import CPU, GIB, MODEL, config, gpu, needs, placed, with_room_for
from worker.llama.invariance import has_own_products, numerics_of
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device
from worker.wire.load import Numerics

L4, ANOTHER_L4 = (replace(gpu(80 * GIB, index), description="NVIDIA L4") for index in (0, 1))
NO_SIZES = BufferSizes()
H100 = replace(gpu(40 * GIB, 1), description="NVIDIA H100")


def reported(
    available: list[Device],
    sizes: BufferSizes = NO_SIZES,
    *,
    is_without_flash: bool = False,
    **changes: Any,
) -> Numerics:
    asked = config(threads=3, **changes)
    return numerics_of(asked, MODEL, placed(available, **changes), sizes, is_without_flash=is_without_flash)


def test_a_cpu_has_no_name_and_a_gpu_has() -> None:
    assert reported([CPU]).device == reported([replace(CPU, description="another processor")]).device == "cpu"
    assert reported([L4, CPU]).device == "cuda NVIDIA L4"
    assert reported([L4, H100, CPU], split_mode="layer").device == "cuda NVIDIA L4 + NVIDIA H100"


def test_auto_is_reported_as_its_result() -> None:
    found = [
        (each.cache_type_k, each.flash_attn) for each in (reported([CPU], cache_type_k="auto"), reported([L4, CPU]))
    ]
    assert found == [("f16", True), ("f16", True)]
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
