"""The self-test finds nothing where there is nothing, names what differs, and leaves the memory as it was."""

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest

from tests.llama.conftest import LoadRandom, MakeContext
from tests.llama.random_models import GEMMA, MROPE, PLAIN, RECURRENT, SLIDING, Kind
from worker.engine.backend import Saved, Slice
from worker.engine.contract import SelfTested, SlotId
from worker.llama.context import Context, Logits
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.self_test import Habits, self_test

SERVING = Habits(chunk=16, is_fixed=False, has_guesses=True, context_length=64)
ALL_WAYS = (
    *(
        "in one step",
        "in chunks of 7 and 1",
        "from the prefix cache",
        "with guessed tokens",
        "sharing another's prefix",
    ),
    *("beside 7 others", "over the cells of 7 others"),
)


def verdict(runner: LlamaRunner, habits: Habits = SERVING) -> SelfTested | None:
    """The result; the memory is empty afterwards."""
    results = [result for result in self_test(runner, habits, most_s=600.0) if result is not None]
    assert runner.context.n_cells_used == 0
    assert runner.n_free_cells == runner.context.n_ctx
    assert len(results) <= 1
    return results[0] if results else None


# ── the real model ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_with_k_and_v_of_two_types_every_way_gives_the_same_bits(make_context: MakeContext, model: Model) -> None:
    runner = real_runner(make_context, model, type_k="bf16")
    habits = Habits(chunk=32, is_fixed=False, has_guesses=True, context_length=1024)
    assert verdict(runner, habits) == SelfTested(is_same=True)


@pytest.mark.model
def test_with_k_and_v_of_one_type_long_steps_and_many_cells_are_found_to_differ(
    make_context: MakeContext, model: Model
) -> None:
    """ggml then sums in tiles for 64 and more rows, and splits a lone row over 512 and more cells between threads."""
    runner = real_runner(make_context, model, type_k="f16")
    habits = Habits(chunk=32, is_fixed=False, has_guesses=True, context_length=1024)
    found = verdict(runner, habits)
    assert found is not None
    assert not found.is_same
    assert {"in one step", "over the cells of 7 others"} <= set(found.differences)


def real_runner(make_context: MakeContext, model: Model, type_k: str, *, swa_full: bool = True) -> LlamaRunner:
    """Eight slots, as `serve` has them, and two threads."""
    more = {"n_threads": 2, "n_threads_batch": 2, "type_k": type_k, "swa_full": swa_full}
    sizes = {"n_ctx": 1024, "n_batch": 512, "n_ubatch": 512, "n_seq_max": 8}
    return LlamaRunner(model, make_context(model, **sizes, **more))


# ── small models ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, MROPE, SLIDING, GEMMA], ids=str)
@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_small_models_with_products_row_by_row_are_the_same_too(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind, chunk: int
) -> None:
    runner = real_runner(make_context, load_random(kind), type_k="bf16")
    for is_fixed in (False, True):
        habits = Habits(chunk=chunk, is_fixed=is_fixed, has_guesses=True, context_length=1024)
        assert verdict(runner, habits) == SelfTested(is_same=True)


@pytest.mark.model
@pytest.mark.parametrize("kind", [SLIDING, RECURRENT], ids=lambda kind: kind.architecture)
def test_a_memory_that_cannot_be_cut_is_tested_without_reuse(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    runner = real_runner(make_context, load_random(kind), type_k="bf16", swa_full=False)
    habits = Habits(chunk=16, is_fixed=False, has_guesses=False, context_length=1024)
    found = verdict(runner, habits)
    assert found is not None
    assert set(found.differences) <= {"in one step", "in chunks of 7 and 1", "beside 7 others"}


# ── a memory that remembers what it should not ───────────────────────────────────────────────────


class Tainted(LlamaRunner):
    """From a step, load or share that `taints` until the memory is cleared, logits are one unit too high."""

    def __init__(self, model: Model, context: "TaintedContext") -> None:
        super().__init__(model, context)
        self.memory = context

    def load(self, slot: SlotId, parts: Sequence[Saved], n_tokens: int) -> None:
        super().load(slot, parts, n_tokens)
        self.memory.note(f"load {len(parts)}")

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        super().share(source, target, n_tokens)
        self.memory.note("share")


class TaintedContext(Context):
    taints: Callable[[str], bool]
    is_tainted = False

    def note(self, what: str) -> None:
        self.is_tainted |= self.taints(what)

    def decode(self, slices: Sequence[Slice]) -> list[int]:
        of_all, own = self.n_cells_used, self.n_cells(slices[0].slot)
        words = (f"slices {len(slices)}", f"tokens {len(slices[0].tokens)}", f"guesses {slices[0].n_drafts}")
        for what in (*words, f"crowded {of_all - own > 100}" if len(slices) == 1 else ""):
            self.note(what)
        return super().decode(slices)

    def logits(self, index: int) -> Logits:
        return super().logits(index) + np.float32(self.is_tainted)

    def clear(self) -> None:
        self.is_tainted = False
        super().clear()


def tainted(tiny: Model, *taints: str, n_slots: int = 8) -> Tainted:
    context = TaintedContext(
        tiny, n_ctx=1024, n_batch=128, n_ubatch=128, n_seq_max=n_slots, n_threads=1, n_threads_batch=1
    )
    context.taints = taints.__contains__
    return Tainted(tiny, context)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("nothing", ()),
        ("tokens 48", ("in one step",)),
        ("tokens 7", ("in chunks of 7 and 1",)),
        ("load 2", ("from the prefix cache",)),
        ("guesses 3", ("with guessed tokens",)),
        ("share", ("sharing another's prefix",)),
        ("slices 8", ("beside 7 others",)),
        ("crowded True", ("over the cells of 7 others",)),
    ],
)
def test_what_differs_is_named(tiny: Model, what: str, names: tuple[str, ...]) -> None:
    runner = tainted(tiny, what)
    assert verdict(runner) == SelfTested(is_same=not names, differences=names)
    assert names == () or names[0] in ALL_WAYS


def test_all_that_differs_is_named(tiny: Model) -> None:
    kinds = ("tokens 48", "tokens 7", "load 2", "guesses 3", "share", "slices 8", "crowded True")
    found = verdict(tainted(tiny, *kinds))
    assert found == SelfTested(is_same=False, differences=ALL_WAYS)


def test_logits_that_are_no_numbers_equal_themselves(model_of_nan: Model) -> None:
    assert verdict(tainted(model_of_nan)) == SelfTested(is_same=True)


# ── ways that are not taken ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_where_chunks_are_fixed_prompts_are_cut_nowhere_else(tiny: Model, chunk: int) -> None:
    habits = Habits(chunk=chunk, is_fixed=True, has_guesses=False, context_length=64)
    elsewhere = [f"tokens {n}" for n in range(2, 65) if n not in (chunk, 48 % chunk, 48)]
    runner = tainted(tiny, *elsewhere, "guesses 3")
    assert verdict(runner, habits) == SelfTested(is_same=True)


def test_without_a_memory_that_can_be_cut_nothing_is_reused(tiny: Model) -> None:
    class Uncut(Tainted):
        can_share = False

    runner = tainted(tiny, "load 1", "load 2", "share", "guesses 3", "slices 8")
    uncut = Uncut(tiny, runner.memory)
    habits = Habits(chunk=16, is_fixed=False, has_guesses=False, context_length=64)
    assert verdict(uncut, habits) == SelfTested(is_same=False, differences=("beside 7 others",))


def test_a_single_slot_has_no_company(tiny: Model) -> None:
    runner = tainted(tiny, "share", "crowded True", n_slots=1)
    assert verdict(runner) == SelfTested(is_same=True)


@pytest.mark.parametrize("n_slots", [2, 3, 8, 200])
def test_the_smallest_memory_is_enough(tiny: Model, n_slots: int) -> None:
    context = Context(tiny, n_ctx=1, n_batch=1, n_ubatch=1, n_seq_max=n_slots, n_threads=1, n_threads_batch=1)
    for is_fixed in (False, True):
        habits = Habits(chunk=1, is_fixed=is_fixed, has_guesses=True, context_length=10_000)
        assert verdict(LlamaRunner(tiny, context), habits) == SelfTested(is_same=True)


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_it_can_be_broken_off_after_any_step(tiny: Model) -> None:
    runner = tainted(tiny)
    n_steps = len(list(self_test(runner, SERVING)))
    for n_taken in range(n_steps):
        steps = self_test(runner, SERVING)
        for _ in range(n_taken):
            assert next(steps) is None
        steps.close()
        assert runner.context.n_cells_used == 0
    assert verdict(runner) == SelfTested(is_same=True)


@pytest.mark.parametrize("n_taken", [0, 1, 9])
def test_an_abort_that_comes_too_late_for_its_step_begins_it_anew(tiny: Model, n_taken: int) -> None:
    """A client may leave just as its job, the last one, has ended."""
    runner = tainted(tiny)
    steps = self_test(runner, SERVING)
    for _ in range(n_taken):
        assert next(steps) is None
    runner.request_abort()
    assert [result for result in steps if result is not None] == [SelfTested(is_same=True)]
    assert runner.context.n_cells_used == 0


def ticking() -> Callable[[], float]:
    """Every decode takes a second."""
    return map(float, count()).__next__


@pytest.mark.parametrize(("most_s", "is_done"), [(0.0, False), (5.0, False), (20.0, False), (600.0, True)])
def test_without_the_time_there_is_no_verdict(tiny: Model, most_s: float, *, is_done: bool) -> None:
    results = list(self_test(tainted(tiny), SERVING, most_s=most_s, clock=ticking()))
    assert len(results) - 2 <= most_s
    assert (results[-1] == SelfTested(is_same=True)) == is_done


def test_what_was_found_before_the_time_was_up_is_told(tiny: Model) -> None:
    """One part of a prompt: a step to see how long it takes, six alone, five in one step."""
    *steps, found = self_test(tainted(tiny, "tokens 24", "slices 8"), SERVING, most_s=12.0, clock=ticking())
    assert len(steps) == 13
    assert found == SelfTested(is_same=False, differences=("in one step",))


def test_a_context_too_short_for_the_sequence_stays_untested(tiny: Model) -> None:
    habits = Habits(chunk=16, is_fixed=False, has_guesses=True, context_length=27)
    assert verdict(tainted(tiny), habits) is None
