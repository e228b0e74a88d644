"""The choice of the kernels that multiply matrices of a type on the CPU: ours (patches/ggml-cpu/rows16.h), or ggml's.

It is one choice for all numbers of rows, because a job's numbers must not change with the jobs beside it.
"""

import ctypes
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
from msgspec.structs import replace

from worker.config.engine_settings import Configure, Kernels
from worker.errors import ModelLoadFailed
from worker.host import cpu_quota, processor
from worker.llama.devices import devices
from worker.llama.invariance import PRODUCT_TYPES, has_own_products, own_function
from worker.llama.library import build
from worker.llama.repack import TILES, TYPE_IDS, forget_layouts, layout_of, multiplied
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo
from worker.wire.encoding import encode_json
from worker.wire.load import KernelsChosen, Speeds

MIN_SPEED = 1 / 1.03
"""Types that are slower for one row in each of the trials are left to ggml. The speed is that of ours over ggml's."""
_MAX_S = 0.25
"""No further type is timed after that; one type takes up to 0.1 s."""
_MIN_BYTES = 1 << 20
"""Smaller matrices are not timed: no memory's speed decides there."""
_NONE = "this processor, or this build of llama.cpp, has only llama.cpp's kernels"


def choose_kernels(config: Configure, info: ModelInfo, found: KernelsChosen | None = None) -> KernelsChosen:
    """Choose for each type of the model's matrices, if the choice was not found before, and have the library use them.

    Raises: ModelLoadFailed.
    """
    if not has_own_products():
        if config.kernels == "ours":
            raise ModelLoadFailed(f"--kernels ours: {_NONE}; ours need AVX-512 VNNI: use --kernels auto")
        return KernelsChosen(why=_NONE)
    chosen = found or _chosen(config, _largest(info))
    use = own_function(b"ggml_rows16_use", None, ctypes.c_int, ctypes.c_bool)
    for name, _ in chosen.ours + chosen.stock:
        use(TYPE_IDS[name], name in dict(chosen.ours))
    forget_layouts()
    return chosen


def fixed(kernels: Kernels) -> Kernels:
    """The choice that depends on no measurement: ours, if there are any."""
    return "ours" if kernels == "auto" and has_own_products() else kernels


def _chosen(config: Configure, largest: dict[str, Tensor]) -> KernelsChosen:
    untimed: Speeds = tuple((name, ()) for name in largest)
    if config.kernels == "stock":
        return KernelsChosen(why="--kernels stock", stock=untimed)
    if config.kernels == "ours" or config.deterministic:
        return KernelsChosen(why=f"--{'deterministic' if config.deterministic else 'kernels ours'}", ours=untimed)
    if config.device != "cpu" and any(device.is_gpu for device in devices()):
        return KernelsChosen(why="they are not timed beside a GPU", ours=untimed)
    timed = _remembered(largest, config) if config.kernels_dir else None
    if timed is None:
        return KernelsChosen(why="what is timed cannot be remembered here", ours=untimed)
    if config.batch_invariant == "on":
        return KernelsChosen(why="--batch-invariant on", ours=timed.ours + timed.stock)
    return timed


def _largest(info: ModelInfo) -> dict[str, Tensor]:
    """The largest matrix of each of our types; the type of the largest one first."""
    found: dict[str, Tensor] = {}
    for matrix in sorted(multiplied(info), key=lambda matrix: matrix.n_bytes, reverse=True):
        if matrix.type_name in PRODUCT_TYPES and len(matrix.dims) == 2:
            found.setdefault(matrix.type_name, matrix)
    return found


def _remembered(largest: dict[str, Tensor], config: Configure) -> KernelsChosen | None:
    """Return what was timed of such a model, build and processor, because each start must choose as the first one did;
    None if it cannot be written down."""
    if not largest:
        return KernelsChosen(why="the model has no matrices of their types")
    n_threads = config.threads or cpu_quota()
    shapes = [(name, matrix.dims) for name, matrix in largest.items()]
    key = hashlib.sha256(repr((build(), processor(), n_threads, shapes)).encode()).hexdigest()[:32]
    with suppress(OSError):
        path = Path(config.kernels_dir) / f"{key}.json"
        with suppress(FileNotFoundError, msgspec.DecodeError):
            found = msgspec.json.decode(path.read_bytes(), type=KernelsChosen)
            if dict(found.ours + found.stock).keys() == largest.keys():
                return replace(found, why="timed at an earlier start")
        path.parent.mkdir(parents=True, exist_ok=True)
        timed = _timed(largest, n_threads)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_bytes(encode_json(timed))
        written.replace(path)
        return timed
    return None


def _timed(largest: dict[str, Tensor], n_threads: int) -> KernelsChosen:
    given_up = time.monotonic() + _MAX_S
    sides: dict[bool, Speeds] = {True: (), False: ()}
    word, number = ctypes.c_int, ctypes.c_int64
    speed = own_function(b"ggml_rows16_speed", ctypes.c_double, word, number, number, word, word)
    for name, matrix in largest.items():
        laid_out = layout_of(matrix)
        is_in_tiles = laid_out is not None and laid_out.buffers == TILES
        if is_in_tiles or matrix.n_bytes < _MIN_BYTES or time.monotonic() > given_up:
            sides[True] += ((name, ()),)
            continue
        trials = [speed(TYPE_IDS[name], *matrix.dims, 1, n_threads) for _ in range(3)]
        others = (speed(TYPE_IDS[name], *matrix.dims, n_rows, n_threads) for n_rows in (8, 64))
        speeds = tuple(round(each, 3) for each in (median(trials), *others))
        sides[max(trials) >= MIN_SPEED] += ((name, speeds),)
    return KernelsChosen(why="timed at this start", ours=sides[True], stock=sides[False])
