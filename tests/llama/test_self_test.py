"""The self-test finds nothing where there is nothing, names what differs, and leaves the memory as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.llama.conftest import LoadRandom, MakeContext, context_on, weights_in_main
from tests.llama.random_models import GEMMA, MROPE, PLAIN, QUANTISED, RECURRENT, SLIDING, WIDE, Kind, write_wide
from tests.on_cpu import loaded_on_cpu
from tests.server.front.rehearsal import CONFIG
from worker.engine.backend import Checkpoint, Meanwhile, Saved, do_nothing
from worker.engine.step import Slice
from worker.errors import ModelLoadFailed
from worker.llama.batch import RowGroups
from worker.llama.context import Context, Logits
from worker.llama.invariance import has_own_products
from worker.llama.kv import Kv
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.self_test import Serving, demanded, self_test
from worker.models.plan.memory import MAX_PADDING
from worker.wire.jobs import SlotId
from worker.wire.load import Determinism, Tried

SERVING = Serving(chunk=16, is_fixed=False, n_parallel=8, has_drafts=True, context_length=64)
ALL_WAYS = ("in one step", "in small chunks", "with draft tokens", "beside 7 others", "over the cells of 7 others")


SAME = Determinism(is_same=True)


def verdict(runner: LlamaRunner, serving: Serving = SERVING) -> Determinism | None:
    """The result, less what was tried."""
    found = outcome(runner, serving)
    return found and structs.replace(found, tried=None)


def outcome(runner: LlamaRunner, serving: Serving = SERVING) -> Determinism | None:
    """The result; the memory is empty afterwards."""
    found = self_test(runner, serving)
    assert runner.kv.n_cells_used == 0
    assert runner.kv.n_free_cells == runner.context.n_ctx
    return found


# ── the real model ───────────────────────────────────────────────────────────────────────────────


LONG = replace(SERVING, chunk=32, context_length=1024)


@pytest.mark.model
def test_with_k_and_v_of_two_types_every_way_gives_the_same_bits(make_context: MakeContext, shallow: Model) -> None:
    assert verdict(real_runner(make_context, shallow, type_k="bf16"), LONG) == SAME


@pytest.mark.model
def test_with_k_and_v_of_one_type_long_steps_and_many_cells_are_found_to_differ(
    make_context: MakeContext, shallow: Model
) -> None:
    """ggml then sums in tiles for 64 and more rows, and splits a lone row over 512 and more cells between threads; our
    attention has one way."""
    found = verdict(real_runner(make_context, shallow, type_k="f16"), LONG)
    assert found is not None
    assert found.is_same == has_own_products()
    assert found.is_same or {"in one step", "over the cells of 7 others"} <= set(found.differences)


def real_runner(make_context: MakeContext, model: Model, type_k: str, *, swa_full: bool = True) -> LlamaRunner:
    """Eight slots, as `serve` has them, and two threads."""
    sizes = {"n_ctx": 1024, "n_batch": 512, "n_ubatch": 512, "n_seq_max": 8, "n_threads": 2, "n_threads_batch": 2}
    return LlamaRunner(model, make_context(model, **sizes, type_k=type_k, swa_full=swa_full))


# ── small models ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, MROPE, SLIDING, GEMMA], ids=str)
@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_small_models_with_products_row_by_row_are_the_same_too(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind, chunk: int
) -> None:
    runner = real_runner(make_context, load_random(kind), type_k="bf16")
    for is_fixed in (False, True):
        assert verdict(runner, replace(LONG, chunk=chunk, is_fixed=is_fixed)) == SAME


@pytest.mark.model
@pytest.mark.parametrize("kind", [SLIDING, RECURRENT], ids=lambda kind: kind.architecture)
def test_a_memory_that_cannot_be_cut_is_tested_without_reuse(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    runner = real_runner(make_context, load_random(kind), type_k="bf16", swa_full=False)
    found = verdict(runner, replace(LONG, chunk=16, has_drafts=False))
    assert found is not None
    assert set(found.differences) <= {"in one step", "in small chunks", "beside 7 others"}


# ── a memory that remembers what it should not ───────────────────────────────────────────────────


class TaintedKv(Kv):
    """The context's own memory under another class."""

    def __init__(self, context: "TaintedContext") -> None:
        self.__dict__ = context.kv.__dict__
        self.context = context

    def load(self, slot: SlotId, parts: Sequence[Saved], n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        super().load(slot, parts, n_tokens, checkpoint)
        self.context.note("load")

    def clear(self) -> None:
        self.context.is_tainted = False
        super().clear()


class TaintedContext(Context):
    """Logits are one unit too high from a step, load or share that `taints` until the memory is cleared."""

    taints: Callable[[str], bool]
    is_tainted = False

    def note(self, what: str) -> None:
        self.is_tainted |= self.taints(what)

    def decode(self, slices: Sequence[Slice], meanwhile: Meanwhile = do_nothing) -> list[int]:
        of_all, own = self.kv.n_cells_used, self.kv.n_cells(slices[0].slot)
        words = (f"slices {len(slices)}", f"tokens {len(slices[0].tokens)}", f"guesses {slices[0].n_drafts}")
        for what in (*words, f"crowded {of_all - own > 100}" if len(slices) == 1 else ""):
            self.note(what)
        return super().decode(slices, meanwhile)

    def rows(self) -> Logits:
        return super().rows() + np.float32(self.is_tainted)


def tainted(
    tiny: Model, *taints: str, n_slots: int = 8, kv: Callable[[TaintedContext], TaintedKv] = TaintedKv
) -> LlamaRunner:
    threads: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1}
    context = TaintedContext(tiny, n_ctx=1024, n_batch=128, n_ubatch=128, n_seq_max=n_slots, **threads)
    context.taints = taints.__contains__
    context.kv = kv(context)
    return LlamaRunner(tiny, context)


KINDS = ("tokens 48", "tokens 7", "guesses 8", "slices 8", "crowded True")
"""Each is done by one way alone; the order is that of ALL_WAYS."""
WIDTHS_OF_8 = "in decode steps of 8 rows"


@pytest.mark.parametrize(
    ("taints", "names"),
    [
        ((), ()),
        *(((kind,), (WIDTHS_OF_8,) * (kind == "slices 8") + (way,)) for kind, way in zip(KINDS, ALL_WAYS, strict=True)),
        (KINDS, (WIDTHS_OF_8, *ALL_WAYS)),
        (("slices 2", "slices 3", "slices 5", "slices 7"), ("in decode steps of 2 to 3, 5 and 7 rows",)),
    ],
)
def test_all_that_differs_is_named(tiny: Model, taints: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert outcome(tainted(tiny, *taints)) == Determinism(
        is_same=not names, differences=names, tried=Tried(ways=ALL_WAYS, widths=tuple(range(1, 9)), prompts=5)
    )


# ── row groups ───────────────────────────────────────────────────────────────────────────────────


FIXED = replace(SERVING, is_fixed=True, has_drafts=False)


@pytest.mark.parametrize(
    ("taints", "groups"),
    [((), RowGroups()), (("slices 8",), RowGroups(most=4)), (("slices 2", "slices 3", "slices 4"), RowGroups(most=1))],
)
def test_with_fixed_chunks_rows_are_grouped_until_they_are_the_same(
    tiny: Model, taints: tuple[str, ...], groups: RowGroups
) -> None:
    """This context cannot fill steps up, and so has three choices."""
    runner = tainted(tiny, *taints)
    found = outcome(runner, FIXED)
    assert found is not None
    assert found.tried is not None
    assert (found.is_same, found.tried.row_multiple, found.tried.most_rows) == (True, groups.multiple, groups.most)
    assert runner.context.row_groups == groups
    assert found.tried.widths == tuple(range(1, 9)), "each number of jobs there can be, however their rows are computed"
    assert outcome(runner, FIXED) == found, "a restarted engine chooses the same"


def test_what_no_grouping_cures_is_named_in_full(tiny: Model) -> None:
    differences = ("beside 7 others", "over the cells of 7 others")
    assert verdict(tainted(tiny, "slices 8", "crowded True"), FIXED) == Determinism(
        is_same=False, differences=differences
    )


def test_without_the_flag_rows_are_never_grouped(tiny: Model) -> None:
    runner = tainted(tiny, "slices 8")
    assert verdict(runner) != SAME
    assert runner.context.row_groups == RowGroups()


# ── weights of many types ────────────────────────────────────────────────────────────────────────


WIDE_FIXED = replace(FIXED, chunk=64, context_length=1024)


@contextmanager
def wide_runner(folder: Path, family: str, name: str, *, is_fixed: bool) -> Iterator[LlamaRunner]:
    """The same as models/loading/load.py makes with the flag and without it."""
    path = write_wide(folder / "wide.gguf", family, name)
    may_repack = weights_in_main(path, keeps_bits=is_fixed).repacked > 0
    with loaded_on_cpu(path, may_repack=may_repack) as model:
        sizes = {"n_ctx": 1024 + MAX_PADDING, "n_batch": 512, "n_ubatch": 512, "n_seq_max": 9}
        yield LlamaRunner(model, context_on(model, **sizes, type_k="bf16", has_padding=is_fixed))


@pytest.mark.model
@pytest.mark.parametrize("family", WIDE, ids=str)
@pytest.mark.parametrize("name", QUANTISED)
def test_with_fixed_chunks_weights_of_every_type_are_the_same(tmp_path: Path, family: str, name: str) -> None:
    with wide_runner(tmp_path, family, name, is_fixed=True) as runner:
        assert verdict(runner, WIDE_FIXED) == SAME


@pytest.mark.model
@pytest.mark.parametrize("name", ["Q4_K_M", "Q6_K", "F16"])
def test_without_the_flag_the_widths_of_other_kernels_are_found(tmp_path: Path, name: str) -> None:
    """ggml computes eight rows of K-quants otherwise than one, and two of floats; our products do not."""
    with wide_runner(tmp_path, "llama", name, is_fixed=False) as runner:
        found = verdict(runner, replace(WIDE_FIXED, chunk=32, is_fixed=False))
    assert found is not None
    if name != "F16" and has_own_products():
        assert found.is_same
        return
    assert found.differences[0].startswith("in decode steps of ")
    assert found.differences[0].endswith(" 8 rows")


def test_logits_that_are_no_numbers_equal_themselves(model_of_nan: Model) -> None:
    assert verdict(tainted(model_of_nan)) == SAME


# ── ways that are not taken ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_where_chunks_are_fixed_prompts_are_cut_nowhere_else(tiny: Model, chunk: int) -> None:
    prompts = (9, 6, 12, 10, 48)
    elsewhere = [f"tokens {n}" for n in range(2, 65) if n not in {chunk, *prompts, *(n % chunk for n in prompts)}]
    assert verdict(tainted(tiny, *elsewhere, "guesses 8"), replace(FIXED, chunk=chunk)) == SAME


def test_without_a_memory_that_can_be_cut_nothing_is_reused(tiny: Model) -> None:
    class Uncut(TaintedKv):
        can_share = False

    uncut = tainted(tiny, "load", "guesses 8", "slices 8", kv=Uncut)
    assert verdict(uncut, replace(SERVING, has_drafts=False)) == Determinism(
        is_same=False, differences=(WIDTHS_OF_8, "beside 7 others")
    )


def test_a_single_slot_has_no_neighbours(tiny: Model) -> None:
    assert verdict(tainted(tiny, "crowded True", n_slots=1), replace(SERVING, n_parallel=1)) == SAME


@pytest.mark.parametrize("n_slots", [2, 3, 8, 200])
def test_the_smallest_memory_is_enough(tiny: Model, n_slots: int) -> None:
    context = context_on(tiny, n_ctx=1, n_batch=1, n_ubatch=1, n_seq_max=n_slots)
    for serving in (SERVING, FIXED):
        changed = replace(serving, chunk=1, n_parallel=n_slots, context_length=10_000)
        assert verdict(LlamaRunner(tiny, context), changed) == SAME


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_each_step_is_a_sign_of_life(tiny: Model) -> None:
    signs: list[int] = []
    runner = tainted(tiny)
    self_test(runner, SERVING, lambda: signs.append(runner.kv.n_cells_used))
    assert len(signs) > 50
    assert all(signs)


@pytest.mark.parametrize("flag", ["--deterministic", "--batch-invariant on"])
def test_the_load_fails_where_bits_are_demanded_and_differ_or_cannot_be_compared(tiny: Model, flag: str) -> None:
    is_fixed = flag == "--deterministic"
    config = replace(CONFIG, deterministic=is_fixed, batch_invariant=CONFIG.batch_invariant if is_fixed else "on")
    with pytest.raises(ModelLoadFailed) as failed:
        demanded(config, tainted(tiny, "slices 8"), SERVING, do_nothing)
    assert str(failed.value).startswith(f"{flag}: an answer would depend on other jobs: ")
    assert "differ in decode steps of 8 rows, beside 7 others. Use --device cpu" in str(failed.value)
    with pytest.raises(ModelLoadFailed, match=f"{flag}: a context of 27 tokens .* Use --ctx-size 64 or more"):
        demanded(config, tainted(tiny), replace(SERVING, context_length=27), do_nothing)


def test_a_context_too_short_for_the_sequence_has_no_verdict(tiny: Model) -> None:
    assert verdict(tainted(tiny), replace(SERVING, context_length=27)) is None
