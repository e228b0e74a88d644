"""The meaning of `--batch-invariant` for a model: if a job's numbers depend on what is computed beside it, and why.

The file, the build, the processor and the settings decide, and never a timing: a restart, an engine after a crash and
a second worker decide alike. Where a flag demands the same bits, self_test.py finds out if they are.

`auto` keeps the numbers the same if that costs nothing, which is so if ggml's CPU backend has products and attention
that give a row the same bits next to any others (patches/). Otherwise ggml's fastest kernels are used. There the same
bits cost a prompt 12 to 26 %, for K in bf16 alone, and up to half of its speed if weights would be repacked.
"""

import ctypes
import functools
import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import llama_cpp

from worker.config.engine_settings import Configure
from worker.errors import ModelLoadFailed
from worker.host import cpu_quota
from worker.llama.devices import backend_function, cpu, devices, features
from worker.llama.library import LIBRARY_DIR, call_ggml
from worker.llama.repack import TILES, TYPE_IDS, LayoutOf, is_stack, multiplied
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.memory import has_state, k_type
from worker.models.plan.placement import Group, Placement
from worker.wire.load import BatchInvariance, Determinism, Numerics

OWN_PRODUCTS = "ROWS16"
"""The name of our products and attention among the features of ggml's CPU backend (patches/rows16.patch)."""
PRODUCT_TYPES = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
"""The types of weights they are for (ggml_rows16_has in patches/ggml-cpu/rows16.cpp)."""
_ALIKE_BY_GGML = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})
"""The types for which ggml's products may have the same bits beside any others; they have not for all others."""
_ELSEWHERE = "on this processor, or in this build of llama.cpp, it would make prompts slower"
_OTHER_CACHE = "the KV cache is not of f16"
_STOCK_ATTENTION = "ggml's attention sums in an order that depends on the step"
"""It has several ways if K and V are of f16."""
MAX_SHARING = 64
"""The number of heads that may share K and V in that attention."""
REPEATED_PRODUCTS_OFF = ("GGML_CPU_TILED_MM", "0")
"""The environment variable with which ggml multiplies eight rows of K-quants and more as it does one."""


def has_own_products() -> bool:
    """True if the CPU backend that was loaded has them, and no other takes products from it, as BLAS would: the build
    does, and the processor has AVX-512 VNNI."""
    found = devices()
    is_alone = all(device.kind != "accel" for device in found)
    return is_alone and any(OWN_PRODUCTS in features(device) for device in found if device.kind == "cpu")


def own_types() -> frozenset[str]:
    """The types of weights that they multiply here, and that were not left to ggml (kernels.py)."""
    if not has_own_products():
        return frozenset()
    has = own_function(b"ggml_rows16_has", ctypes.c_bool, ctypes.c_int)
    return frozenset(name for name in PRODUCT_TYPES if has(TYPE_IDS[name]))


def own_function(name: bytes, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of patches/ggml-cpu/products.h, where they are. Any: ctypes types have no common one."""
    return ctypes.CFUNCTYPE(result, *arguments)(backend_function(cpu(), name)[1] or 0)


def type_k_of(config: Configure, *, is_on_gpu: bool) -> str:
    """The K cache's type. It is another one than V's where numbers must be the same and ggml's own CPU attention
    computes them, which leaves that one of its three ways to sum."""
    must_order = config.must_be_invariant and not is_on_gpu and config.flash_attn != "off"
    return k_type(config.cache_type_k, needs_one_order=must_order and not has_own_products())


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule on a model that is loaded in this way: nothing is tried."""

    obstacle: str | None
    """The reason why a job's numbers may depend on other jobs; None if they do not."""
    difference: str | None = None
    """The reason why they do; None if they may be the same in spite of the obstacle."""

    def invariance(self, config: Configure) -> BatchInvariance:
        if config.deterministic:
            return BatchInvariance(kept=True, why="--deterministic")
        if config.batch_invariant != "auto":
            return BatchInvariance(
                kept=config.batch_invariant == "on", why=f"--batch-invariant {config.batch_invariant}"
            )
        return BatchInvariance(kept=self.obstacle is None, why=self.obstacle or "it costs nothing here")

    @property
    def determinism(self) -> Determinism | None:
        """The verdict, unless a flag demands the test; None where the rule knows none."""
        if self.obstacle is None:
            return Determinism(is_same=True)
        return Determinism(is_same=False, differences=(self.difference,)) if self.difference else None


def rule_of(
    config: Configure,
    info: ModelInfo,
    *,
    is_on_gpu: bool,
    is_without_flash: bool,
    is_in_order: bool,
    own_types: Collection[str],
    layout: LayoutOf,
) -> Rule:
    """Apply the rule to a model that is loaded so. `is_in_order`: each sequence's cells lie in the order of its
    positions. `layout`: where the library has put the matrices, all that can be laid out anew or none."""
    is_cache_f16 = {config.cache_type_k, config.cache_type_v} <= {"auto", "f16"}
    obstacles = {
        "on a GPU sums depend on the number of rows": is_on_gpu,
        _ELSEWHERE: not own_types,
        "without flash attention sums depend on the number of cells": config.flash_attn == "off" or is_without_flash,
        _OTHER_CACHE: not is_cache_f16,
        "recurrent layers compute several tokens otherwise than one": has_state(info),
        "small memories of sliding windows have an order of their own": info.windows and config.swa_full == "off",
        "with this many jobs cells are not kept in order": not is_in_order,
        "attention with such heads is ggml's own": not _has_own_attention(info),
    }
    differences = {
        _ELSEWHERE: _STOCK_ATTENTION if is_cache_f16 and not has_own_products() else None,
        _OTHER_CACHE: None,
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            return Rule(obstacle, differences.get(obstacle, obstacle))
    found = {matrix.type_name for matrix in multiplied(info) if _is_computed_otherwise(matrix, layout, own_types)}
    found |= {tensor.type_name for tensor in info.loaded_tensors if tensor.name.endswith((".lora_a", ".lora_b"))}
    if not found:
        return Rule(None)
    obstacle = f"products with {', '.join(sorted(found))} depend on the number of rows"
    return Rule(obstacle, None if found <= _ALIKE_BY_GGML else obstacle)


def check_order(config: Configure, info: ModelInfo, *, has_order: bool, n_jobs: int) -> None:
    """Raises: ModelLoadFailed if numbers must not depend on other jobs, and would depend on the order of their cells.

    A CPU's attention adds up a sequence's cells in the order in which they lie. Where cells cannot be kept in the order
    of their positions, those of a job lie in the holes that others leave; the self-test need not meet such a case.
    """
    if has_order or n_jobs == 1 or not config.must_be_invariant:
        return
    flag = config.invariance_flag
    ways = "--swa-full on or --parallel 1" if info.windows and config.swa_full != "on" else "--parallel 1"
    raise ModelLoadFailed(
        f"{flag}: with {n_jobs} jobs at once the cells of this model's memory cannot be kept in the order of their "
        f"tokens, and an answer would depend on other jobs: use {ways}, or remove {flag}"
    )


def _is_computed_otherwise(matrix: Tensor, layout: LayoutOf, own_types: Collection[str]) -> bool:
    """True if a row of a product with it has other bits next to others. Those of stacks, as of experts, are ggml's."""
    laid_out = layout(matrix)
    if laid_out is not None and laid_out.buffers == TILES:
        return False
    return matrix.type_name not in own_types or is_stack(matrix)


def _has_own_attention(info: ModelInfo) -> bool:
    """Source: Attention::can in patches/ggml-cpu/attention16.h."""
    lengths = {(info.key_length, info.value_length)}
    if info.windows:
        lengths.add((info.windows.key_length, info.windows.value_length))
    heads = zip(info.head_counts, info.head_counts_kv, strict=True)
    can_share = all(not n_kv or n // n_kv <= MAX_SHARING for n, n_kv in heads)
    return can_share and all(k % 8 == 0 and v % 16 == 0 for k, v in lengths)


# ── what decides the numbers of a loaded model (wire/numerics.py) ────────────────────────────────

_SHARED_OUT = ("f32", "f16")
"""The cache types whose attention ggml's CPU code shares out among threads over many cells, where K and V are of one
type. Source: use_split_kv_path in ggml_compute_forward_flash_attn_ext_f16 (ggml-cpu/ops.cpp)."""


def numerics_of(
    config: Configure, info: ModelInfo, placement: Placement, sizes: BufferSizes, *, is_without_flash: bool
) -> Numerics:
    """The settings that decide the numbers of a model that was loaded so. The engine and parity both ask here, so that
    a report and a worker cannot mean two things by one word.

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
