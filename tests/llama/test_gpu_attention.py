"""What a GPU has no attention for is refused by name, and what it computes slowly is warned of."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.plan.test_placement import CPU, GIB, gpu
from worker.config.engine import configure
from worker.config.settings import CACHE_TYPES, Settings
from worker.errors import ModelLoadFailed
from worker.llama.gpu_attention import asked_flash, check_cache_types, check_flash
from worker.plan.devices import Device
from worker.upstream.numbers import CUDA_ATTENTION_PAIRS, CUDA_ATTENTION_TYPES
from worker.wire.messages import Configure

GPU = gpu(GIB)


def config(**changed: object) -> Configure:
    return msgspec.structs.replace(configure(Settings(), Path("model.gguf")), **changed)


@pytest.mark.parametrize("type_k", CACHE_TYPES)
@pytest.mark.parametrize("type_v", CACHE_TYPES)
@pytest.mark.parametrize("flash_attn", ["auto", "on"])
def test_every_pair_is_computed_on_the_gpu_or_refused_and_slow_ones_are_told(
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
def test_other_devices_have_kernels_of_their_own(device: Device) -> None:
    assert check_cache_types(config(cache_type_v="iq4_nl"), device, "q8_0") is None


def test_without_flash_attention_no_pair_matters() -> None:
    assert check_cache_types(config(flash_attn="off"), GPU, "iq4_nl") is None


def test_flash_attention_that_a_gpu_does_not_have_is_refused_where_it_was_asked_for() -> None:
    asked = config(flash_attn="on")
    assert asked_flash(asked, GPU) == "auto", "the library says then whether there is any"
    with pytest.raises(ModelLoadFailed, match="--flash-attn on: "):
        check_flash(asked, GPU, is_without_flash=True)
    check_flash(asked, GPU, is_without_flash=False)
    check_flash(config(), GPU, is_without_flash=True)


@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
def test_a_cpu_is_told_what_was_asked(flash_attn: str) -> None:
    asked = config(flash_attn=flash_attn)
    assert asked_flash(asked, CPU) == flash_attn
    check_flash(asked, CPU, is_without_flash=True)
