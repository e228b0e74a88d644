"""Rows of logits to draw from: a model's own, still in its context, and synthetic ones of any vocabulary.

One thread, that of the context.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tools.bench.llama.chain import Logits
from worker.engine.step import Slice
from worker.errors import ModelLoadFailed
from worker.host import cpu_quota
from worker.llama.context import Context
from worker.llama.devices import devices
from worker.llama.model import Model
from worker.models.facts.info import read_info
from worker.models.plan.devices import choose_device
from worker.wire.jobs import SamplingParams, SlotId

N_SYNTHETIC = 8
STANDARD_DEVIATION = 3.0
N_PEAKS, LOWEST_PEAK, HIGHEST_PEAK = 8, 8.0, 14.0

_TEXT = (
    "The harbour was quiet when the last ferry came in. Three people left it: a man with a cello, "
    "a woman who counted her steps aloud, and a child asleep"
)
_MAX_TOKENS = 16
"""The number of tokens of the text; its first two tokens give the first row, its first three the next."""

Origin = Literal["model", "synthetic"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows, at least one, each float32[n_vocab] without NaN. A context's rows are valid until it decodes again."""

    origin: Origin
    logits: Sequence[Logits]
    context: Context | None = None
    indexes: Sequence[int] = ()
    """The context's index of each row."""

    @property
    def n_vocab(self) -> int:
        return len(self.logits[0])


def synthetic_rows(n_vocab: int) -> Rows:
    """Normal logits of standard deviation 3 and mean 0, eight of them replaced by a uniform number in 8..14; seeded."""
    chance = np.random.default_rng(n_vocab)
    rows = chance.normal(0.0, STANDARD_DEVIATION, (N_SYNTHETIC, n_vocab)).astype(np.float32)
    for row in rows:
        row[chance.integers(n_vocab, size=N_PEAKS)] = chance.uniform(LOWEST_PEAK, HIGHEST_PEAK, N_PEAKS)
    return Rows("synthetic", list(rows))


@contextmanager
def model_rows(path: Path) -> Iterator[Rows]:
    """A model's answers to the beginnings of a fixed text, one decode for all of them, on the CPU.

    Raises: BadModelFile, ModelLoadFailed, InsufficientMemory.
    """
    info = read_info(path)
    cpu = choose_device("cpu", devices())
    with Model.load(info.path, device=cpu, n_gpu_layers=0, on_progress=lambda _: None) as model:
        tokens = model.tokenize(_TEXT)[:_MAX_TOKENS]
        beginnings = [tokens[:n_tokens] for n_tokens in range(2, len(tokens) + 1)]
        context = _context(model, n_slots=len(beginnings), n_tokens=sum(map(len, beginnings)))
        wanted = SamplingParams(seed=0)
        indexes = context.decode(
            [Slice(SlotId(slot), 0, beginning, wanted) for slot, beginning in enumerate(beginnings)]
        )
        logits = list(context.rows())
        if np.isnan(logits).any():
            raise ModelLoadFailed(f"{path}: its logits are not numbers")
        yield Rows("model", logits, context, indexes)


def _context(model: Model, *, n_slots: int, n_tokens: int) -> Context:
    n_threads = cpu_quota()
    return Context(
        model,
        n_ctx=n_tokens,
        n_batch=n_tokens,
        n_ubatch=n_tokens,
        n_seq_max=n_slots,
        n_threads=n_threads,
        n_threads_batch=n_threads,
    )
