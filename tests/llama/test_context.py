"""The decode call and the checks in front of it, on the real library."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llama.conftest import GREEDY, MakeContext, fill, slice_of
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.engine.step import Aborted, BadBatch, NoRoom, Slice
from worker.errors import ModelLoadFailed
from worker.llama.context import Context
from worker.llama.model import Model
from worker.models.upstream.numbers import CACHE_TYPE_IDS
from worker.wire.jobs import SlotId, TokenId

TEXT = "The first prime numbers are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41 and 43; the next one after them is"


@pytest.fixture
def tokens(model: Model) -> list[TokenId]:
    return model.tokenize(TEXT)


@pytest.fixture
def context(make_context: MakeContext) -> Context:
    return make_context()


def best(context: Context, slices: list[Slice]) -> list[int]:
    context.decode(slices)
    return [int(row.argmax()) for row in context.rows()]


pytestmark = pytest.mark.model


# ── results ──────────────────────────────────────────────────────────────────────────────────────


def test_logits_are_a_row_of_the_vocabulary(context: Context, tokens: list[TokenId], model: Model) -> None:
    assert context.decode([slice_of(0, 0, tokens), slice_of(1, 0, tokens, None)]) == [len(tokens) - 1]
    (row,) = context.rows()
    assert (row.shape, row.dtype) == ((model.n_vocab,), np.float32)
    assert np.isfinite(row).all()


@pytest.mark.parametrize("name", sorted(CACHE_TYPE_IDS))
def test_every_cache_type_decodes(make_context: MakeContext, tokens: list[TokenId], name: str) -> None:
    context = make_context(type_k=name, type_v=name)
    assert len(best(context, [slice_of(0, 0, tokens)])) == 1


# ── the checks ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([], "a batch of 0 tokens"),
        ([slice_of(0, 0, [])], "a batch of 0 tokens"),
        ([slice_of(0, 0, [TokenId(5)]), slice_of(1, 0, [])], "without tokens"),
        ([slice_of(0, 0, [TokenId(5)] * 129)], "a batch of 129 tokens; 1 to 128"),
        ([slice_of(0, 0, [TokenId(5)] * 65), slice_of(1, 0, [TokenId(5)] * 64)], "a batch of 129 tokens"),
        ([slice_of(2, 0, [TokenId(5)])], "slot 2; there are 2"),
        ([slice_of(-1, 0, [TokenId(5)])], "slot -1"),
        ([slice_of(0, 0, [TokenId(-1)])], "outside the vocabulary of 49152"),
        ([slice_of(0, 0, [TokenId(5), TokenId(49152)])], "outside the vocabulary"),
        ([slice_of(0, 0, [TokenId(2**70)])], "outside the vocabulary"),
        ([slice_of(0, 1, [TokenId(5)])], "position 1 does not follow its 0 cells"),
        ([slice_of(0, -1, [TokenId(5)])], "position -1"),
        ([slice_of(0, 0, [TokenId(5)]), slice_of(0, 1, [TokenId(5)])], "twice"),
    ],
)
@pytest.mark.usefixtures("default_model")
def test_a_bad_batch_is_refused_and_leaves_no_trace(context: Context, slices: list[Slice], message: str) -> None:
    with pytest.raises(BadBatch, match=message):
        context.decode(slices)
    assert context.kv.n_cells_used == 0
    context.decode([slice_of(0, 0, [TokenId(5)])])


def test_logits_die_with_the_next_decode_and_positions_follow_what_a_slot_holds(context: Context) -> None:
    context.decode([slice_of(0, 0, [TokenId(5)])])
    assert len(context.rows()) == 1
    fill(context, 1, 3)
    assert not len(context.rows())
    for start in (0, 2, 4):
        with pytest.raises(BadBatch, match="does not follow its 3 cells"):
            context.decode([slice_of(1, start, [TokenId(5)])])


@pytest.mark.parametrize(("slot", "n_keep"), [(2, 0), (-1, 0), (10**6, 0), (0, -1)])
def test_a_bad_trim_is_refused_and_one_beyond_the_end_changes_nothing(context: Context, slot: int, n_keep: int) -> None:
    fill(context, 0, 3)
    with pytest.raises(AssertionError, match=r"slot|keep"):
        context.kv.trim(SlotId(slot), n_keep)
    for keep, n_left in ((3, 3), (99, 3), (0, 0), (0, 0)):
        context.kv.trim(SlotId(0), keep)
        assert context.kv.n_cells(SlotId(0)) == context.kv.n_cells_used == n_left


# ── full, aborted, closed ────────────────────────────────────────────────────────────────────────


def test_without_room_nothing_is_kept(make_context: MakeContext) -> None:
    context = make_context(n_ctx=256)
    fill(context, 0, 200)
    with pytest.raises(NoRoom, match="200 of 256 cells"):
        context.decode([slice_of(1, 0, [TokenId(5)] * 57)])
    assert context.kv.n_cells(SlotId(1)) == 0
    context.decode([slice_of(1, 0, [TokenId(5)] * 56)])
    context.kv.trim(SlotId(0), 0)
    fill(context, 0, 200)
    assert context.kv.n_cells_used == 256


@pytest.mark.parametrize(
    ("code", "error"), [(1, NoRoom), (2, Aborted), (-1, BadBatch), (-2, RuntimeError), (-3, RuntimeError)]
)
def test_every_code_of_the_library_is_an_error(context: Context, code: int, error: type[Exception]) -> None:
    """-2 is an allocation that failed, -3 a computation; the engine survives neither
    (worker/server/process/main.py)."""
    with pytest.raises(error) as raised:
        context._raise_for(code, [])
    assert type(raised.value) is error


def test_an_abort_stops_a_decode_that_runs(make_context: MakeContext, tokens: list[TokenId]) -> None:
    """The flag is raised from another thread while the library computes; the slot then goes on as if new."""
    context = make_context(n_ctx=2048, n_batch=2048)
    [expected] = best(context, [slice_of(1, 0, tokens)])
    context.kv.clear()
    raiser = threading.Thread(target=context.request_abort)
    raiser.start()
    with pytest.raises(Aborted):
        context.decode([slice_of(0, 0, [TokenId(5)] * 2000, None)])
    raiser.join()
    context.forget_abort()
    held = context.kv.n_cells(SlotId(0))
    assert held < 2000
    assert held % context.n_ubatch == 0
    context.kv.trim(SlotId(0), 0)
    assert best(context, [slice_of(0, 0, tokens)]) == [expected]


def test_a_context_belongs_to_one_thread(context: Context) -> None:
    fill(context, 0, 1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="thread of its first decode"):
        pool.submit(fill, context, 1, 1).result()


def test_a_closed_context_refuses_and_closes_again(context: Context) -> None:
    context.decode([Slice(SlotId(0), 0, [TokenId(5)], GREEDY)])
    context.close()
    context.close()
    for use in (lambda: context.decode([slice_of(0, 1, [TokenId(5)])]), lambda: context.kv.trim(SlotId(0), 0)):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert not len(context.rows())


def test_a_model_closes_its_contexts_first(tiny: Model, make_context: MakeContext) -> None:
    context = make_context(tiny)
    tiny.close()
    with pytest.raises(ValueError, match="closed"):
        context.decode([slice_of(0, 0, [TokenId(5)])])


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "changes",
    [
        {"n_batch": 1, "n_seq_max": 8},
        {"n_batch": 4, "n_ubatch": 1, "n_seq_max": 8},
        {"n_ubatch": 3, "n_seq_max": 8},
        {"n_ctx": 1, "n_batch": 10**6, "n_ubatch": 10**6},
    ],
)
def test_odd_sizes_work(make_context: MakeContext, tiny: Model, changes: dict[str, int]) -> None:
    """Among them a batch smaller than the slots, which would abort."""
    context = make_context(tiny, **changes)
    slices = [slice_of(slot, 0, [TokenId(5)]) for slot in range(context.n_slots)]
    assert len(context.decode(slices)) == context.n_slots


def test_the_library_says_why_a_context_cannot_be(make_context: MakeContext) -> None:
    with pytest.raises(ModelLoadFailed, match="quantized V cache requires flash_attn"):
        make_context(type_v="q8_0", flash_attn="off")


def test_a_model_that_does_not_generate_is_refused(tmp_path: Path, make_context: MakeContext) -> None:
    changes: dict[str, Any] = {"attention.causal": False}
    with (
        loaded_on_cpu(write_tiny(tmp_path / "tiny.gguf", **changes)) as model,
        pytest.raises(ModelLoadFailed, match="does not generate text"),
    ):
        make_context(model)


STARVED = """
import resource, sys
from pathlib import Path
from worker.errors import InsufficientMemory
from tests.llama.conftest import context_on
from tests.on_cpu import loaded_on_cpu
model = loaded_on_cpu(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    context_on(model, n_ctx=2**25, n_batch=8, n_ubatch=8, n_seq_max=1)
except InsufficientMemory as error:
    print(error.needed_bytes)
"""


def test_memory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The process may have 2 GiB. Otherwise the system might promise any amount, and keep no promise."""
    path = write_tiny(tmp_path / "tiny.gguf")
    done = subprocess.run([sys.executable, "-c", STARVED, path], capture_output=True, timeout=60, check=True)
    assert int(done.stdout) == 2**25 * 128


@pytest.mark.usefixtures("default_model")
def test_the_buffers_of_a_context_are_measured(make_context: MakeContext) -> None:
    """30 layers × 3 KV heads × 64 numbers, K and V, two bytes each: 23,040 bytes a cell."""
    sizes = make_context(n_ctx=1024).sizes
    assert sizes.of_kind("KV") == pytest.approx(1024 * 23_040, rel=0.01)
    assert sizes.of_kind("compute") > 0
    assert sizes.of_kind("output") > 0
    assert sizes.on_device("CPU") == sizes.total_bytes
