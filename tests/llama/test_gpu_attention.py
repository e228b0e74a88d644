"""Caches that a GPU has no attention for are refused by name, and slow ones are warned of."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.models.plan.test_placement import CPU, GIB, gpu
from worker.config.engine import configure
from worker.config.engine_settings import CACHE_TYPES, Configure
from worker.config.settings import Settings
from worker.errors import ModelLoadFailed
from worker.llama.devices import asked_flash, attention_at, check_cache_types, check_flash
from worker.llama.library import LogLine, Watch
from worker.models.plan.devices import Device
from worker.models.upstream.numbers import CUDA_ATTENTION_PAIRS, CUDA_ATTENTION_TYPES
from worker.wire.load import Attention

GPU = gpu(GIB)


def config(**changed: Any) -> Configure:
    return replace(configure(Settings(), Path("model.gguf")), **changed)


@pytest.mark.parametrize("type_k", CACHE_TYPES)
@pytest.mark.parametrize("type_v", CACHE_TYPES)
@pytest.mark.parametrize("flash_attn", ["auto", "on"])
def test_every_pair_is_computed_on_the_gpu_or_refused_and_slow_ones_are_reported(
    type_k: str, type_v: str, flash_attn: str
) -> None:
    asked = config(cache_type_v=type_v, flash_attn=flash_attn)
    if not {type_k, type_v} <= CUDA_ATTENTION_TYPES:
        with pytest.raises(ModelLoadFailed, match="attention would be computed on the CPU"):
            check_cache_types(asked, GPU, type_k)
        return
    warning = check_cache_types(asked, GPU, type_k)
    assert (warning is None) == (type_k == type_v and type_k in CUDA_ATTENTION_PAIRS)
    assert warning is None or (type_k in warning and type_v in warning)


@pytest.mark.parametrize("device", [CPU, replace(GPU, backend="vulkan"), replace(GPU, backend="metal")])
def test_other_devices_have_kernels_of_their_own_and_without_flash_attention_no_pair_matters(device: Device) -> None:
    assert check_cache_types(config(cache_type_v="iq4_nl"), device, "q8_0") is None
    assert check_cache_types(config(flash_attn="off"), GPU, "iq4_nl") is None


@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
def test_flash_attention_that_a_gpu_does_not_have_is_refused_where_it_was_asked_for(flash_attn: str) -> None:
    asked = config(flash_attn=flash_attn)
    assert asked_flash(asked, GPU) == ("off" if flash_attn == "off" else "auto"), (
        "the library says then if there is any"
    )
    assert asked_flash(asked, CPU) == flash_attn
    check_flash(asked, GPU, is_without_flash=False)
    check_flash(asked, CPU, is_without_flash=True)
    with pytest.raises(ModelLoadFailed, match="--flash-attn on: ") if flash_attn == "on" else nullcontext():
        check_flash(asked, GPU, is_without_flash=True)


@pytest.mark.parametrize("gpu_names", [(), ("CUDA0",), ("CUDA0", "CUDA1"), ("MTL0",)])
@pytest.mark.parametrize(
    "with_cells", [(), ("CPU",), ("CUDA0",), ("CUDA0", "CUDA1"), ("CPU", "CUDA1"), ("MTL0_Private",)]
)
def test_attention_is_where_the_library_says_that_cells_lie(
    gpu_names: tuple[str, ...], with_cells: tuple[str, ...]
) -> None:
    """Weights and buffers of other kinds do not count."""
    watch = Watch()
    for name in with_cells:
        watch.take(LogLine("info", f"llama_kv_cache: {name:>10} KV buffer size = 36.00 MiB"))
    for name in ("CPU_Mapped", *gpu_names):
        watch.take(LogLine("info", f"load_tensors: {name:>12} model buffer size = 92.10 MiB"))
    on_gpu = [name.partition("_")[0] in gpu_names for name in with_cells]
    words: dict[tuple[bool, bool], Attention] = {(True, True): "gpu", (True, False): "both", (False, False): "cpu"}
    expected = words[any(on_gpu), all(on_gpu)] if with_cells else None
    assert attention_at(gpu_names, watch.sizes) == expected
