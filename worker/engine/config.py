"""The engine's configuration, fixed when the model is loaded. Facts of a loaded model have their names."""

from dataclasses import dataclass
from typing import Self

from worker.config.engine_settings import Configure, Scheduling
from worker.engine.backend import LoadedModel
from worker.engine.checkpoints import Stops
from worker.engine.drafting.lookups import HISTORY_BYTES
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import SlotId
from worker.wire.load import RowCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    n_slots: int
    n_cells: int
    context_length: int
    chunk: int
    """The number of tokens of a prefill step at first while other jobs generate."""
    widest_step: int = 0
    """The number of tokens of a prefill step while no job generates; less than the chunk means the chunk."""
    chunk_s: float = 0.0
    """The number of seconds that a chunk took at warm-up; 0 if that is not known."""
    itl_target_s: float = 0.150
    """The seconds that a job should wait at most between two tokens while other jobs' prompts are read."""
    is_deterministic: bool = False
    """True if prompts and cached prefixes are cut at multiples of the chunk whatever else runs, without drafts."""
    prefix_cache_bytes: int = 0
    retained_slots: tuple[SlotId, ...] = ()
    """If there are none, ended sequences' cells are copied out at once."""
    max_dead_cells: int = 0
    row_costs: RowCosts = ()
    switch_s: float = 0.0
    scheduling: Scheduling = "fair"
    """The order of jobs. It is first-come in any case if steps are fixed or no computed cells can be kept."""
    has_own_text: bool = True
    """True if drafts are read from a job's own text and from the text that its client predicts."""
    history_bytes: int = 0
    """The bytes that the memory of earlier answers takes, from which drafts are read; 0 means none."""
    draft_max: int = MAX_DRAFTS
    """The largest number of draft tokens from a draft model for one job in a step."""
    reports_blocks: bool = False
    """True if changes of the cached blocks are sent as BlocksChanged."""
    stops: Stops | None = None
    """The rule for places of checkpoints; None if the model has no recurrent state."""

    @classmethod
    def of(cls, asked: Configure, model: LoadedModel) -> Self:
        facts = model.facts
        stride, grain = facts.checkpoint_stride, facts.prefill_chunk if asked.deterministic else 1
        return cls(
            n_slots=facts.parallel,
            n_cells=facts.n_cells,
            context_length=facts.context_length,
            chunk=facts.prefill_chunk,
            widest_step=model.widest_step,
            chunk_s=facts.step_s * facts.prefill_chunk / max(model.widest_step, facts.prefill_chunk),
            itl_target_s=asked.itl_target_s,
            is_deterministic=asked.deterministic,
            prefix_cache_bytes=facts.prefix_cache_bytes,
            retained_slots=model.retained_slots,
            max_dead_cells=model.max_dead_cells,
            row_costs=facts.row_costs,
            switch_s=facts.switch_s,
            scheduling=asked.scheduling,
            has_own_text=asked.prompt_lookup != "off",
            history_bytes=HISTORY_BYTES if asked.prompt_lookup == "on" else 0,
            draft_max=asked.draft_max if asked.draft_path is not None else MAX_DRAFTS,
            reports_blocks=asked.reports_blocks,
            stops=Stops(stride, grain, model.message_ends) if stride else None,
        )
