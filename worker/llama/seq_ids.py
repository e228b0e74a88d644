"""The library's seq_ids in a context, and the use of each.

Owns their numbers. Pure but for what it asks a model about itself.

    0 .. n_slots-1   slots          then, where there are spares:   the copy seq_id, the forgotten seq_id
    and, where cells need two of them, the twin of each in the same order behind
"""

from dataclasses import dataclass, replace
from typing import Self

from worker.llama.model import Model
from worker.models.plan.memory import CELLS_SEQ_IDS, retained_slots
from worker.models.upstream.architectures import HYBRIDS_OF_SEVERAL_PARTS
from worker.models.upstream.numbers import MAX_SEQ_IDS


@dataclass(frozen=True, slots=True)
class SeqIds:
    n_slots: int
    n_spare: int = 0
    """One to share and copy cells, two to keep them in order as well."""
    has_twins: bool = False

    @property
    def n_all(self) -> int:
        return (self.n_slots + self.n_spare) * (1 + self.has_twins)

    @property
    def copy_seq_id(self) -> int | None:
        """Has the cells that are on their way into a copy or out of one."""
        return self.n_slots if self.n_spare else None

    @property
    def forgotten_seq_id(self) -> int | None:
        """Has the forgotten cells that are still occupied."""
        return self.n_slots + 1 if self.n_spare > 1 else None

    def twin(self, seq_id: int) -> int:
        return seq_id + self.n_slots + self.n_spare

    def both(self, seq_id: int) -> tuple[int, ...]:
        return (seq_id, self.twin(seq_id)) if self.has_twins else (seq_id,)

    def without_twins(self) -> Self:
        return replace(self, has_twins=False)

    def without_spares(self) -> Self:
        return replace(self, n_spare=0, has_twins=False)


def can_be_cut(model: Model, *, swa_full: bool) -> bool:
    """Return whether a context's memory can forget any part: recurrent state has none, and a sliding window's cells are
    used again if there are fewer of them than of others.
    """
    return model.can_rewind and (swa_full or not model.n_swa)


def has_checkpoints(model: Model) -> bool:
    """Return whether a sequence has a recurrent state, of which copies can be kept. Where layers have windows as well,
    a state and the cells of the windows would have to be copied together; or the cells of an index.
    """
    return not model.can_rewind and not model.n_swa and model.architecture not in HYBRIDS_OF_SEVERAL_PARTS


def seq_ids_for(model: Model, n_slots: int, *, swa_full: bool) -> SeqIds:
    """Spare ones where cells can be cut; two where the order of a sequence's cells decides its last bits, on a CPU.
    None where too few are left, or where there are no cells.
    """
    has_cells = can_be_cut(model, swa_full=swa_full) or (model.is_hybrid and has_checkpoints(model))
    if not has_cells:
        return SeqIds(n_slots)
    has_twins = model.n_swa > 0
    n_left = MAX_SEQ_IDS // (1 + has_twins) - n_slots
    n_spare = min(CELLS_SEQ_IDS if model.device.backend == "cpu" else 1, n_left)
    return SeqIds(n_slots, n_spare, has_twins) if n_spare > 0 else SeqIds(n_slots)


def has_room_for_a_slot(model: Model, n_slots: int, *, swa_full: bool) -> bool:
    """Return whether one more slot takes no spare's place."""
    own = seq_ids_for(model, n_slots, swa_full=swa_full)
    wider = seq_ids_for(model, n_slots + 1, swa_full=swa_full)
    return wider.n_all <= MAX_SEQ_IDS and wider.n_spare == own.n_spare


def n_retained_for(model: Model, n_slots: int, *, swa_full: bool) -> int:
    """Return how many slots can keep finished jobs' cells for later jobs to share; they take no spare's place. There is
    none where each would have a recurrent state: cells and state are copied out at once.
    """
    n_spare = seq_ids_for(model, n_slots, swa_full=swa_full).n_spare
    if not n_spare or not model.can_rewind:
        return 0
    n_left = MAX_SEQ_IDS // (1 + (model.n_swa > 0)) - n_slots - n_spare
    return min(retained_slots(is_on_gpu=model.device.is_gpu), n_left)


def seq_ids_of(model: Model, n_slots: int, *, swa_full: bool, has_padding: bool) -> SeqIds:
    """The seq_ids of a context. `has_padding`: with one more slot, for rows that are not read; without it if it would
    take another's place.
    """
    n_more = has_padding and has_room_for_a_slot(model, n_slots, swa_full=swa_full)
    return seq_ids_for(model, n_slots + n_more, swa_full=swa_full)
