"""The facts that decide the numbers that a loaded model computes, besides its file.

The engine reports them to the front, and a parity report holds them; worker/llama/invariance.py fills them for both.
This module owns the list of facts, and the wording of their differences. It is pure.
"""

from collections.abc import Iterator

import msgspec


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Two workers with the same file and equal Numerics compute the same bits for the same steps.

    Facts that change no number are left out, such as the number of threads if they share no sum.
    """

    device: str
    """`cpu`, whose model name changes no number, or the backend and the names of its GPUs: `cuda NVIDIA L4`."""
    gpu_layers: int
    """The number of layers on GPUs, the output layer included; 0 on a CPU."""
    split_mode: str
    """The word of --split-mode; `none` if one device has the model."""
    gpu_shares: str
    """The parts of the model on the GPUs, in percent, if the GPUs differ or have parts of each matrix."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    swa_full: bool | None
    """True if layers with a sliding window have as many cells as others; None if no layer has one."""
    repacked: bool
    """True if the CPU's kernels for repacked weights compute."""
    tiles: bool = False
    """True if some of these weights lie in tiles of Intel's AMX; also False in reports without this fact."""
    left_to_ggml: tuple[str, ...] = ()
    """The types of weights that ggml's CPU kernels multiply although ours could; also () in reports without this fact.
    """
    threads: int | None
    """The number of CPU threads if attention divides a sum among them; otherwise None."""
    cpu_features: tuple[str, ...]
    """The CPU features that ggml's code uses, in its own words."""
    llama_cpp: str
    """The version of the binding, and ggml's."""
    llama_cpp_sha256: str
    """The digest of llama.cpp's libraries: another compiler or another flag is another build."""


def differences(here: Numerics, proved: Numerics) -> Iterator[str]:
    """Yield a line for each fact that differs, which begins with the fact's name."""
    for name in Numerics.__struct_fields__:
        mine, theirs = getattr(here, name), getattr(proved, name)
        if mine != theirs:
            yield f"{name}: {_shown(mine, theirs)} here, {_shown(theirs, mine)} in the report"


def facts(numerics: Numerics) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of every fact, for people."""
    for name in Numerics.__struct_fields__:
        yield name, _shown(getattr(numerics, name), ())


def _shown(value: object, other: object) -> str:
    """Return a fact as a person reads it; of a list only the items that `other` lacks."""
    match value:
        case tuple():
            others = other if isinstance(other, tuple) else ()
            return " ".join(each for each in value if each not in others) or "none more"
        case bool():
            return "on" if value else "off"
        case None | "":
            return "of no effect"
        case _:
            return str(value)
