"""The costs of the steps of one worker, read from a JSON file (`check` and `measure` write one).

Pure. Refuses to know how the costs were measured (measure.py).
"""

from functools import cached_property
from pathlib import Path

import msgspec

from worker.engine.config import EngineConfig
from worker.engine.drafting.step_costs import interpolated
from worker.errors import UsageError
from worker.plan.memory import retained_slots
from worker.wire.jobs import SlotId, StepKind

RowsMs = tuple[tuple[int, float], ...]
"""(rows of a step, milliseconds that it takes while the memory is empty), ascending."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A worker's sizes, and what its steps take. Milliseconds, and tokens for all sizes."""

    measured_on: str
    parallel: int
    cells: int
    context_length: int
    chunk: int
    widest_step: int
    itl_target_ms: float
    prefix_cache_tokens: int
    """The number of tokens of finished jobs that the worker caches in host memory."""
    decode_ms: RowsMs
    prefill_ms: RowsMs
    decode_ms_per_1000_cells: float
    """The extra time of each row of a decode step per 1,000 cells of its own job, because attention reads them."""
    prefill_ms_per_1000_cells: float
    others_ms_per_1000_cells: float
    """The extra time of each row of any step per 1,000 cells of other jobs, because attention has to skip them."""
    save_ms_per_1000: float
    """Copying the cells of 1,000 tokens out into host memory."""
    load_ms_per_1000: float
    request_ms: float
    """The time of a request outside its steps: the connection, HTTP, two processes."""

    def __post_init__(self) -> None:
        for name, costs in (("decode_ms", self.decode_ms), ("prefill_ms", self.prefill_ms)):
            rows = [n for n, _ in costs]
            if not rows or rows[0] != 1 or rows != sorted(set(rows)) or min(ms for _, ms in costs) <= 0:
                raise ValueError(f"{name} must have ascending numbers of rows from 1 on, and times above 0")

    def step_s(self, kind: StepKind, n_rows: int, n_own: int = 0, n_others: int = 0) -> float:
        """The seconds of a step of this many rows. `n_own` and `n_others`: for each row the cells that were in use
        before the step, of its job and of others, all together.
        """
        if kind == "decode":
            table, per_1000 = self._decode_table, self.decode_ms_per_1000_cells
        else:
            table, per_1000 = self._prefill_table, self.prefill_ms_per_1000_cells
        return (table[n_rows] + (per_1000 * n_own + self.others_ms_per_1000_cells * n_others) / 1000) / 1000

    @cached_property
    def _decode_table(self) -> list[float]:
        return _table(self.decode_ms, self.parallel)

    @cached_property
    def _prefill_table(self) -> list[float]:
        return _table(self.prefill_ms, max(self.chunk * 2, self.widest_step))

    @property
    def n_all_slots(self) -> int:
        """The slots for jobs and the slots that hold the cells of finished jobs."""
        return self.parallel + retained_slots(is_on_gpu=False)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine that has these sizes; a token takes one byte of its prefix cache. There are no drafts."""
        return EngineConfig(
            n_slots=self.parallel,
            n_cells=self.cells,
            context_length=self.context_length,
            chunk=self.chunk,
            widest_step=self.widest_step,
            itl_target_s=self.itl_target_ms / 1000,
            prefix_cache_bytes=self.prefix_cache_tokens,
            retained_slots=tuple(SlotId(slot) for slot in range(self.parallel, self.n_all_slots)),
        )


def read_costs(path: Path) -> StepCosts:
    """Raises: UsageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepCosts)
    except OSError as error:
        raise UsageError(f"--costs {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"--costs {path}: {error}; `measure` writes such a file") from None


def as_json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _table(costs: RowsMs, n_most: int) -> list[float]:
    """Milliseconds by the number of rows, as the engine reckons them, and on beyond the last as the last two rise."""
    table = [0.0, *interpolated(costs)]
    n_last, n_before = costs[-1][0], costs[-2][0] if len(costs) > 1 else 0
    rise = (table[n_last] - table[n_before]) / (n_last - n_before)
    return table + [table[n_last] + rise * i for i in range(1, n_most - n_last + 1)]
