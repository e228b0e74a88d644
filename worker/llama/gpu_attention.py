"""The check that a GPU computes attention itself, and fast: it has no kernels for some types of KV caches and some
heads.

Owns the refusals and warnings about it, and the report of where attention runs. llama.cpp computes attention on the CPU
if it was asked to use flash attention and the GPU has none, which takes many times as long and is reported nowhere.
"""

from collections.abc import Sequence as Seq

from worker.config.engine_settings import Configure, FlashAttn
from worker.errors import ModelLoadFailed
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.devices import Device
from worker.models.upstream.numbers import CUDA_ATTENTION_PAIRS, CUDA_ATTENTION_TYPES
from worker.wire.load import Attention

_ANY_PAIR = f"{', '.join(CUDA_ATTENTION_PAIRS[:-1])} or {CUDA_ATTENTION_PAIRS[-1]}"


def check_cache_types(config: Configure, device: Device, type_k: str) -> str | None:
    """A warning, if attention over such a cache is slow on the device; None where nothing is to be said.

    Raises: ModelLoadFailed where it would be computed on the CPU.
    """
    type_v = config.cache_type_v
    if device.backend != "cuda" or config.flash_attn == "off":
        return None
    for flag, name in (("--cache-type-k", type_k), ("--cache-type-v", type_v)):
        if name not in CUDA_ATTENTION_TYPES:
            raise ModelLoadFailed(
                f"{flag} {name}: CUDA has no flash attention for it, and attention would be computed on the CPU: use "
                f"{_ANY_PAIR}"
            )
    if type_k == type_v and type_k in CUDA_ATTENTION_PAIRS:
        return None
    return (
        f"--cache-type-k {type_k} with --cache-type-v {type_v}: CUDA has no kernel for this pair and converts both to "
        f"f16 in every step, which is slow; use {_ANY_PAIR} for both"
    )


def asked_flash(config: Configure, device: Device) -> FlashAttn:
    """Return the flash attention to ask of the library, which on a GPU finds out by itself whether there is any."""
    return "auto" if device.is_gpu and config.flash_attn == "on" else config.flash_attn


def check_flash(config: Configure, device: Device, *, is_without_flash: bool) -> None:
    """Raises: ModelLoadFailed where flash attention was asked for and the device has none for the model."""
    if device.is_gpu and config.flash_attn == "on" and is_without_flash:
        raise ModelLoadFailed(
            f"--flash-attn on: {device.name} has no flash attention for the heads of this model, and it would be "
            "computed on the CPU: use --flash-attn auto"
        )


def attention_at(gpu_names: Seq[str], sizes: BufferSizes) -> Attention | None:
    """Return where attention is computed; None if no layer has cells for it. `gpu_names`: none for a CPU.

    The library computes a layer's attention where its KV cells lie, and says where these are. What would be computed
    elsewhere has been refused by the functions above.
    """
    all_bytes, gpu_bytes = sizes.of_kind("KV"), sizes.of_kind("KV", gpu_names)
    if not all_bytes:
        return None
    return "both" if 0 < gpu_bytes < all_bytes else "gpu" if gpu_bytes else "cpu"
