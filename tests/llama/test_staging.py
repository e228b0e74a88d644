"""Copies of cells that pass through pinned memory are those that do not, byte for byte."""

import ctypes
import gc
from typing import Any

import pytest

from tests.llama.conftest import LoadRandom, MakeContext
from tests.llama.random_models import HYBRID, PLAIN, SLIDING, Kind
from tools.made_model import SHAPES
from worker.engine.step import Slice
from worker.llama import staging
from worker.llama.devices import device_handle, devices
from worker.llama.library import call_ggml
from worker.llama.staging import MAX_BYTES, SHARE, allocated, staging_for
from worker.llama.warm_up import N_DEAD
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


def test_the_memory_lives_as_long_as_a_view_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []

    def noted(name: str, result: Any, *arguments: Any) -> Any:
        freed.extend([name] if name == "ggml_backend_buffer_free" else [])
        return call_ggml(name, result, *arguments)

    monkeypatch.setattr(staging, "call_ggml", noted)
    memory = memory_of(4096)
    memory[:] = 7
    view = memory[100:200]
    pointer = view.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    del memory, view
    gc.collect()
    assert not freed
    assert pointer[99] == 7
    del pointer
    gc.collect()
    assert freed


def test_what_the_warm_up_copies_passes_through_it() -> None:
    """Otherwise the copies of shorter prompts would be judged by the time of another way."""
    shape = SHAPES["llama-2-7b"]
    n_values = 2 * shape.n_layers * shape.n_embd // shape.n_head * shape.n_head_kv
    assert N_DEAD * 2 * n_values < 0.99 * MAX_BYTES


def test_a_cpu_has_no_pinned_memory() -> None:
    cpu = next(device for device in devices() if device.kind == "cpu")
    assert staging_for(cpu, SHARE * MAX_BYTES) is None
