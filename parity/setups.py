"""The set-ups of llama.cpp that everything is measured with, and one model file's rows under any of them."""

import worker.llama  # noqa: F401, I001 - before numpy, which brings another C++ library
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parity.compare import Summary, summarise
from parity.evidence import FullLogits, ReferenceLogits, Window, longest
from parity.llama.scoring import Scorer, Setup
from worker.llama.devices import devices
from worker.llama.invariance import type_k_of
from worker.llama.model import Model
from worker.llama.invariance import numerics_of
from worker.models.loading.contexts import load_weights
from worker.models.facts.info import ModelInfo
from worker.models.plan.devices import Device, choose_device
from worker.models.plan.memory import k_type
from worker.models.plan.placement import Placement
from worker.config.engine_settings import Configure
from worker.wire.load import Numerics

ALL_LAYERS: Final = -1
"""llama.h: a negative n_gpu_layers means all."""

EXACT: Final = Setup("f32", "f32", "off")
"""The most exact settings of llama.cpp."""


ROUNDED: Final = {"q8_0": "q8", "q5_0": "q5", "q5_1": "q5", "q4_0": "q4", "q4_1": "q4", "iq4_nl": "q4"}
"""Quantised cache types → the bounds' word for what they cost."""

GELU: Final = frozenset({"gemma", "gemma2", "gemma3"})
"""Architectures whose GELU ggml's CPU code looks up in a table of float16."""

_N_ROWS = 32
"""Tokens that are computed at once, as in a prefill chunk of a small machine."""


def as_served(n_rows: int = _N_ROWS) -> Setup:
    """The default settings of `serve` on any device, with chunks of `n_rows` tokens."""
    return Setup(k_type("auto"), "f16", "auto", n_rows)


@dataclass(frozen=True, slots=True)
class Served:
    """A model as `serve` has it. Made by `served`."""

    model: Model
    scorer: Scorer
    numerics: Numerics


def costs_of(numerics: Numerics, architecture: str) -> tuple[str, ...]:
    """The parts other than the weights that round, spelled as in the bounds' allowances: cache types, the device, the
    graph."""
    rounded = {ROUNDED[each] for each in {numerics.cache_type_k, numerics.cache_type_v} & ROUNDED.keys()}
    return (*sorted(rounded | {numerics.device.partition(" ")[0]}), *costs_of_graph(architecture))


def costs_of_graph(architecture: str) -> tuple[str, ...]:
    return ("gelu",) if architecture in GELU else ()


@contextmanager
def served(config: Configure, info: ModelInfo, placement: Placement, *, n_ctx: int, n_threads: int) -> Iterator[Served]:
    """The model, loaded by the code and with the settings that the engine loads it with, in a context for its rows.

    Raises: ModelLoadFailed, InsufficientMemory.
    """
    with load_weights(config, info, placement, lambda _: None) as model:
        type_k = type_k_of(config, is_on_gpu=placement.group.is_gpu)
        setup = Setup(type_k, config.cache_type_v, config.flash_attn, _N_ROWS, placement.plan.swa_full)
        with Scorer(model, setup, n_ctx=n_ctx, n_threads=n_threads) as scorer:
            numerics = numerics_of(config, info, placement, model.sizes, is_without_flash=scorer.is_without_flash)
            yield Served(model, scorer, numerics)


def cpu() -> Device:
    return choose_device("cpu", devices())


def opened(path: Path, device: Device | None = None) -> Model:
    """The model on the CPU, or all of it on `device`. Raises: ModelLoadFailed, InsufficientMemory."""
    where = device or cpu()
    return Model.load(path, device=where, n_gpu_layers=ALL_LAYERS if where.is_gpu else 0, on_progress=lambda _: None)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """All logits of some windows under one set-up, on disk."""

    logits: FullLogits

    def against(self, reference: ReferenceLogits, numbers: Sequence[int] | None = None) -> Summary:
        """These rows as a candidate's. `numbers`: which windows of the reference they are; None: all, in order."""
        known = range(len(self.logits.windows)) if numbers is None else numbers
        return summarise([reference.positions(number, self.logits.rows(own)) for own, number in enumerate(known)])


def compute(
    path: Path, setup: Setup, windows: Sequence[Window], *, folder: Path, n_threads: int, device: Device | None = None
) -> StoredRows:
    """The rows of `windows`, on the CPU or with all layers on `device`. Makes `folder`, which the caller removes.

    Disk: n_vocab float32 a token. Raises: ModelLoadFailed, InsufficientMemory; ValueError for logits that are not
    finite.
    """
    folder.mkdir()
    with (
        opened(path, device) as model,
        Scorer(model, setup, n_ctx=longest(windows), n_threads=n_threads) as scorer,
    ):
        return StoredRows(FullLogits.make(folder, windows, lambda window: scorer.logits(window.tokens)))


def evaluated(reference: ReferenceLogits, n_tokens: int) -> tuple[int, ...]:
    """The numbers of the first windows of the text, long ones where there are any, that hold `n_tokens`; at least one.

    Raises: ValueError where there is none.
    """
    kinds = [window.kind for window in reference.windows]
    kind = "long" if "long" in kinds else "short"
    chosen: list[int] = []
    n_held = 0
    for number, window in enumerate(reference.windows):
        if window.kind == kind and n_held < n_tokens:
            chosen.append(number)
            n_held += len(window.tokens)
    if not chosen:
        raise ValueError("the reference has no windows of the text")
    return tuple(chosen)
