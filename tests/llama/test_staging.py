"""Copies of cells that pass through pinned memory are those that do not, byte for byte."""

import ctypes
import gc

import numpy as np
import pytest

from tests.llama.conftest import LoadRandom, MakeContext
from tests.llama.random_models import HYBRID, PLAIN, SLIDING, Kind
from worker.engine.step import Slice
from worker.llama.devices import device_handle, devices
from worker.llama.library import call_ggml
from worker.llama.staging import MAX_BYTES, SHARE, allocated, staging_for
from worker.saved.arena import Bytes
from worker.wire.jobs import SlotId, TokenId

pytestmark = pytest.mark.model

N_TOKENS = 40


def memory_of(n_bytes: int) -> Bytes:
    """Memory of the CPU's own type of buffers, because no pinned one is here."""
    cpu = ctypes.c_void_p(device_handle(next(device for device in devices() if device.kind == "cpu")))
    memory = allocated(call_ggml("ggml_backend_dev_buffer_type", ctypes.c_void_p, cpu), n_bytes)
    assert memory is not None
    return memory


@pytest.mark.parametrize("n_bytes", [2**24, 2**10], ids=["all fit", "none fits"])
@pytest.mark.parametrize("kind", [PLAIN, SLIDING, HYBRID], ids=str)
def test_copies_through_staging_are_the_same(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind, n_bytes: int
) -> None:
    """Cells, parts of a window and a recurrent state pass twice, the second time through what the first has left."""
    plain, staged = (make_context(load_random(kind)) for _ in range(2))
    staged.kv.staging = memory_of(n_bytes)
    tokens = [TokenId(3 + i % 50) for i in range(N_TOKENS)]
    found = []
    for context in (plain, staged):
        context.decode([Slice(SlotId(0), 0, tokens)])
        checkpoint = context.kv.checkpoint(SlotId(0)) if context.kv.has_state else None
        saved = context.kv.save(SlotId(0), 0)
        for _ in range(2):
            context.kv.trim(SlotId(1), 0)
            context.kv.load(SlotId(1), [saved], N_TOKENS, checkpoint)
        again = context.kv.save(SlotId(1), 0)
        found.append([bytes(each.data) for each in (saved, again)])
    assert found[0] == found[1]


def test_the_memory_is_of_the_size_asked_for_and_goes_with_its_last_view() -> None:
    memory = memory_of(4096)
    memory[:] = np.arange(4096, dtype=np.uint32).view(np.uint8)[:4096]
    part = memory[100:200].copy()
    view = memory[100:200]
    del memory
    gc.collect()
    assert np.array_equal(view, part)


def test_a_cpu_has_no_pinned_memory() -> None:
    cpu = next(device for device in devices() if device.kind == "cpu")
    assert staging_for(cpu, SHARE * MAX_BYTES) is None
