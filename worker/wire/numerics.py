"""What decides the numbers that a loaded model computes, beside its file.

The engine tells the front of it, and a parity report holds it; worker/llama/numerics.py fills it for both. Owns which
facts these are, and what is said where two of them differ. Pure.
"""

from collections.abc import Iterator

import msgspec


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Two workers with the same file and equal Numerics compute the same bits for the same steps.

    What changes no number is no part of it, such as how many threads compute where they share no sum.
    """

    device: str
    """`cpu`, whose model name changes no number, or the backend and the names of its GPUs: `cuda NVIDIA L4`."""
    gpu_layers: int
    """How many layers are on GPUs, the output layer included; 0 on a CPU."""
    split_mode: str
    """As --split-mode; `none` where one device has the model."""
    gpu_shares: str
    """The parts of the model on the GPUs, in percent, where these are unlike or have parts of each matrix."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    swa_full: bool | None
    """Whether layers with a sliding window have as many cells as others; None where no layer has one."""
    repacked: bool
    """Whether the CPU's kernels for weights that were laid out anew compute."""
    tiles: bool = False
    """True if some of these weights lie in tiles of Intel's AMX; False, too, in reports that do not tell."""
    threads: int | None
    """How many CPU threads compute, where attention shares a sum out among them; else None."""
    cpu_features: tuple[str, ...]
    """What ggml's CPU code uses, in its own words."""
    llama_cpp: str
    """The version of the binding, and ggml's."""
    llama_cpp_sha256: str
    """Of llama.cpp's libraries: another compiler or another flag is another build."""


def differences(here: Numerics, proved: Numerics) -> Iterator[str]:
    """A line for each fact that is not the same, which begins with the fact's name."""
    for name in Numerics.__struct_fields__:
        mine, theirs = getattr(here, name), getattr(proved, name)
        if mine != theirs:
            yield f"{name}: {_shown(mine, theirs)} here, {_shown(theirs, mine)} in the report"


def facts(numerics: Numerics) -> Iterator[tuple[str, str]]:
    """(name, value) of every fact, for people."""
    for name in Numerics.__struct_fields__:
        yield name, _shown(getattr(numerics, name), ())


def _shown(value: object, other: object) -> str:
    """A fact as a person reads it; of a list what `other` has not."""
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
