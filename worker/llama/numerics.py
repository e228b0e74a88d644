"""The facts that decide a loaded model's numbers (wire/numerics.py), looked up in the process that loaded it.

The engine and parity both call `numerics_of`, so that a report and a worker cannot mean two things by one word.
"""

import ctypes
import functools
import hashlib

import llama_cpp

from worker.config.engine_settings import Configure
from worker.host import cpu_quota
from worker.llama.devices import devices, features
from worker.llama.invariance import PRODUCT_TYPES, has_own_products, own_types, type_k_of
from worker.llama.library import LIBRARY_DIR, call_ggml
from worker.llama.repack import TILES
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.placement import Group, Placement
from worker.wire.numerics import Numerics

_SHARED_OUT = ("f32", "f16")
"""The cache types whose attention ggml's CPU code shares out among threads over many cells, where K and V are of one
type. Source: use_split_kv_path in ggml_compute_forward_flash_attn_ext_f16 (ggml-cpu/ops.cpp)."""


def numerics_of(
    config: Configure, info: ModelInfo, placement: Placement, sizes: BufferSizes, *, is_without_flash: bool
) -> Numerics:
    """The settings that decide the numbers of a model that was loaded so.

    `sizes`: the model's; `is_without_flash`: the context's, as Watch has it.
    """
    group = placement.group
    type_k, type_v = type_k_of(config, is_on_gpu=group.is_gpu), config.cache_type_v
    flash_attn = config.flash_attn != "off" and not is_without_flash
    is_on_cpu = not (group.is_gpu and placement.is_complete)
    is_shared_out = flash_attn and type_k == type_v in _SHARED_OUT and is_on_cpu and not has_own_products()
    names = " + ".join(device.description for device in group.devices)
    version, commit = (call_ggml(name, ctypes.c_char_p).decode() for name in ("ggml_version", "ggml_commit"))
    return Numerics(
        device=f"{group.devices[0].backend} {names}" if group.is_gpu else "cpu",
        gpu_layers=placement.n_gpu_layers,
        split_mode=config.split_mode if len(group.devices) > 1 else "none",
        gpu_shares=_shares(group, config.split_mode),
        cache_type_k=type_k,
        cache_type_v=type_v,
        flash_attn=flash_attn,
        swa_full=placement.plan.swa_full if info.windows else None,
        repacked=placement.weights_in_main.repacked > 0,
        tiles=sizes.of_kind("model", [TILES]) > 0,
        left_to_ggml=tuple(sorted(PRODUCT_TYPES - own_types())) if has_own_products() else (),
        threads=config.threads or cpu_quota() if is_shared_out else None,
        cpu_features=tuple(each for device in devices() if device.kind == "cpu" for each in features(device)),
        llama_cpp=f"llama-cpp-python {llama_cpp.__version__}, ggml {version} ({commit})",
        llama_cpp_sha256=_libraries_sha256(),
    )


def _shares(group: Group, split_mode: str) -> str:
    """They follow the free memory of the moment; to whole layers on GPUs of one kind they are all the same."""
    is_alike = len({device.description for device in group.devices}) == 1
    if len(group.devices) == 1 or (is_alike and split_mode == "layer"):
        return ""
    return ", ".join(f"{100 * share / sum(group.shares):.0f} %" for share in group.shares)


@functools.cache
def _libraries_sha256() -> str:
    """Return a digest over the digest of each file, by name: hundredths of a second; with CUDA's kernels up to one."""
    whole = hashlib.sha256()
    for path in sorted(LIBRARY_DIR.glob("lib*")):
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
