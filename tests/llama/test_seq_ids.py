"""A model's memory gets seq_ids for slots, spares, twins, and a slot for cells that linger."""

from types import SimpleNamespace
from typing import cast

import pytest

from worker.llama.model import Model
from worker.llama.seq_ids import n_retained_for, seq_ids_of
from worker.models.upstream.numbers import MAX_SEQ_IDS


def model(backend: str = "cpu", *, is_hybrid: bool = False, **changes: object) -> Model:
    """The facts that are asked of a model."""
    device = SimpleNamespace(backend=backend, is_gpu=backend != "cpu")
    facts = {"device": device, "can_rewind": not is_hybrid, "is_hybrid": is_hybrid, "n_swa": 0, "architecture": "llama"}
    return cast(Model, SimpleNamespace(**facts | changes))


@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal", "vulkan"])
@pytest.mark.parametrize("n_swa", [0, 128])
def test_on_every_device_cells_may_linger_where_the_memory_can_be_cut(backend: str, n_swa: int) -> None:
    n_retained = n_retained_for(model(backend, n_swa=n_swa), 8, swa_full=True)
    assert n_retained == (8 if backend == "cpu" else 16)


@pytest.mark.parametrize(("architecture", "n_spare"), [("lfm2", 2), ("glm5-next", 0), ("deepseek4", 0)])
def test_there_are_spare_ones_where_copies_of_a_state_can_be_kept(architecture: str, n_spare: int) -> None:
    """An index or compressed cells would have to be copied with it. A spare one has a state of its own."""
    assert seq_ids_of(model(is_hybrid=True, architecture=architecture), 8, swa_full=True).n_spare == n_spare


def test_nothing_lingers_in_a_memory_that_cannot_be_cut() -> None:
    assert not n_retained_for(model(can_rewind=False), 8, swa_full=True)
    assert not n_retained_for(model(n_swa=128), 8, swa_full=False)


def test_a_slot_with_recurrent_state_is_not_kept_but_cells_beside_it_are_copied() -> None:
    """Each sequence id has a state of its own, if it needs one or not."""
    for backend, n_spare in (("cpu", 2), ("cuda", 1)):
        hybrid, recurrent = model(backend, is_hybrid=True), model(backend, can_rewind=False)
        assert seq_ids_of(hybrid, 8, swa_full=True).n_spare == n_spare
        assert seq_ids_of(recurrent, 8, swa_full=True).n_all == 8
        assert not n_retained_for(hybrid, 8, swa_full=True)
        assert not seq_ids_of(model(backend, is_hybrid=True, n_swa=128), 8, swa_full=True).n_spare


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("n_swa", [0, 128])
def test_no_more_are_used_than_the_library_has_and_a_slot_more_takes_no_spare(backend: str, n_swa: int) -> None:
    asked = model(backend, n_swa=n_swa)
    for n_slots in range(1, MAX_SEQ_IDS + 1):
        own = seq_ids_of(asked, n_slots, swa_full=True)
        assert own.n_all <= MAX_SEQ_IDS
        n_retained = n_retained_for(asked, n_slots, swa_full=True)
        with_retained = seq_ids_of(asked, n_slots + n_retained, swa_full=True)
        assert (with_retained.n_all <= MAX_SEQ_IDS, with_retained.n_spare) == (True, own.n_spare)
        padded = seq_ids_of(asked, n_slots, swa_full=True, has_padding=True)
        assert (padded.n_all <= MAX_SEQ_IDS, padded.n_spare) == (True, own.n_spare)
