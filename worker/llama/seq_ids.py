"""The library's seq_ids in a context, and the use of each.

Owns their numbers. Pure but for what it asks a model about itself.

    0 .. n_slots-1   slots          then, where there are spares:   the copy seq_id, the forgotten seq_id
    and, where cells need two of them, the twin of each in the same order behind
"""

from dataclasses import dataclass, replace

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


def seq_ids_of(model: Model, n_slots: int, *, swa_full: bool, has_padding: bool = False) -> SeqIds:
    """The seq_ids of a context. There are spare ones where cells can be cut or a state's copies be kept; two where the
    order of a sequence's cells decides its last bits, on a CPU; none where too few are left.

    `has_padding`: with one more slot, for rows that are not read; without it if it would take another's place.
    """
    can_be_cut = model.can_rewind and (swa_full or not model.n_swa)
    # Beside windows, or the cells of an index, a state would have to be copied together with them.
    has_checkpoints = model.is_hybrid and not model.n_swa and model.architecture not in HYBRIDS_OF_SEVERAL_PARTS
    has_twins = can_be_cut and model.n_swa > 0
    n_wanted = CELLS_SEQ_IDS if model.device.backend == "cpu" else 1
    n_spare = min(n_wanted, MAX_SEQ_IDS // (1 + has_twins) - n_slots) if can_be_cut or has_checkpoints else 0
    ids = SeqIds(n_slots, n_spare, has_twins) if n_spare > 0 else SeqIds(n_slots)
    wider = replace(ids, n_slots=n_slots + 1)
    return wider if has_padding and wider.n_all <= MAX_SEQ_IDS else ids


def n_retained_for(model: Model, n_slots: int, *, swa_full: bool) -> int:
    """Return how many slots can keep finished jobs' cells for later jobs to share; they take no spare's place. There is
    none where each would have a recurrent state: cells and state are copied out at once.
    """
    n_spare = seq_ids_of(model, n_slots, swa_full=swa_full).n_spare
    if not n_spare or not model.can_rewind:
        return 0
    n_left = MAX_SEQ_IDS // (1 + (model.n_swa > 0)) - n_slots - n_spare
    return min(retained_slots(is_on_gpu=model.device.is_gpu), n_left)
