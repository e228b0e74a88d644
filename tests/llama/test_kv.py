"""The order of cells serves one law: a job's logits are the same bits next to any others.

Memories that cannot be cut are recognised, share and save nothing, and are served all the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi

from tests.llama.conftest import GREEDY, LoadRandom, MakeContext, fill, slice_of
from tests.llama.random_models import HYBRID, NAMED_ONLY, PLAIN, RECURRENT, SLIDING, WINDOW, Kind
from worker.engine.backend import KvMismatch
from worker.engine.step import Slice, Step
from worker.llama.context import Context
from worker.llama.invariance import has_own_products
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.wire.jobs import SlotId, TokenId

pytestmark = pytest.mark.model

N_SLOTS, N_CELLS = 4, 768
COMPANY = {"n_ctx": N_CELLS, "n_batch": 512, "n_ubatch": 512, "n_seq_max": N_SLOTS, "n_threads": 2, "type_k": "bf16"}


@dataclass
class Job:
    prompt: list[TokenId]
    n_draws: int
    n_computed: int = 0
    rows: list[bytes] = field(default_factory=list)
    """The logits of each draw, bit for bit."""
    last: TokenId | None = None

    @property
    def is_prompt_done(self) -> bool:
        return self.n_computed >= len(self.prompt)

    @property
    def is_done(self) -> bool:
        return len(self.rows) == self.n_draws

    def next_tokens(self, most: int) -> list[TokenId]:
        return [self.last] if self.last is not None else self.prompt[self.n_computed :][:most]

    def take(self, n_tokens: int, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        self.n_computed += n_tokens
        if self.is_prompt_done:
            self.rows.append(logits.tobytes())
            self.last = TokenId(int(np.argmax(logits)))


def jobs(n_vocab: int) -> list[Job]:
    """Prompts from one token to beyond 512 cells, which is where llama.cpp has other kernels for lone rows."""
    chance = Random(5)
    lengths = (1, 3, 300, 40, 70, 520, 20, 150, 33, 64)
    return [Job([TokenId(chance.randrange(n_vocab)) for _ in range(n)], n_draws=4 + n % 9) for n in lengths]


def step(context: Context, parts: dict[int, tuple[Job, list[TokenId]]]) -> None:
    slices = [slice_of(slot, job.n_computed, tokens) for slot, (job, tokens) in parts.items()]
    context.decode(slices)
    for row, (job, tokens) in zip(context.rows(), parts.values(), strict=True):
        job.take(len(tokens), row)


def alone(context: Context, job: Job) -> list[bytes]:
    context.kv.clear()
    while not job.is_done:
        step(context, {0: (job, job.next_tokens(32))})
    return job.rows


def in_company(context: Context, waiting: list[Job], chance: Random) -> Iterator[Job]:
    """Run all jobs as they come, in steps of random shape; some are given up half-way. Yields each when it leaves."""
    context.kv.clear()
    running: dict[int, Job] = {}
    while waiting or running:
        room = N_CELLS - sum(len(job.prompt) + job.n_draws for job in running.values())
        free = [slot for slot in range(N_SLOTS) if slot not in running]
        if waiting and free and len(waiting[-1].prompt) + waiting[-1].n_draws <= room:
            running[chance.choice(free)] = waiting.pop()
        is_prefill = chance.random() < 0.5
        some = [slot for slot, job in running.items() if job.is_prompt_done != is_prefill and chance.random() < 0.8]
        if some:
            most = chance.choice([16, 64, 200]) // len(some)
            step(context, {slot: (running[slot], running[slot].next_tokens(most)) for slot in some})
        for slot in [slot for slot, job in running.items() if job.is_done or chance.random() < 0.01]:
            context.kv.trim(SlotId(slot), 0)
            yield running.pop(slot)


def test_a_job_has_the_same_logits_alone_and_under_any_load(make_context: MakeContext, shallow: Model) -> None:
    context = make_context(shallow, **COMPANY)
    expected = {tuple(job.prompt): alone(context, job) for job in jobs(shallow.n_vocab)}
    for seed in (1, 2):
        n_drawn = 0
        for job in in_company(context, jobs(shallow.n_vocab), Random(seed)):
            assert job.rows == expected[tuple(job.prompt)][: len(job.rows)], f"prompt of {len(job.prompt)} tokens"
            n_drawn += len(job.rows)
        assert n_drawn > 40


def test_without_a_cache_type_of_its_own_other_jobs_show(make_context: MakeContext, shallow: Model) -> None:
    """The law above can fail: with llama.cpp's own types its own attention chooses the kernel by the company. Loud when
    that changes. Ours does not."""
    lonely = make_context(shallow, **COMPANY | {"type_k": "f16"})
    long = jobs(shallow.n_vocab)[5]
    rows = alone(lonely, long)
    again = jobs(shallow.n_vocab)[5]
    lonely.kv.clear()
    neighbour = Job([TokenId(7)], n_draws=99)
    step(lonely, {1: (neighbour, neighbour.next_tokens(1))})
    while not again.is_done:
        step(lonely, {0: (again, again.next_tokens(32)), 1: (neighbour, neighbour.next_tokens(1))})
    assert (again.rows == rows) == has_own_products()


# ── counts ───────────────────────────────────────────────────────────────────────────────────────


def test_the_most_slots_there_can_be_leave_no_seq_id_for_order_and_still_decode(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    context = make_context(load_random(PLAIN), n_seq_max=MAX_SEQ_IDS, n_batch=512)
    fill(context, MAX_SEQ_IDS - 1, 5)
    context.kv.trim(SlotId(MAX_SEQ_IDS - 1), 2)
    assert context.kv.n_cells_used == 2


@pytest.mark.parametrize(
    ("seq_id", "n_tokens", "words"),
    [
        (0, 3, "seq_id 0 has 3 tokens in llama.cpp's memory; we count 5"),
        (0, 0, "seq_id 0 has 0 tokens in llama.cpp's memory; we count 5"),
        (1, 2, "seq_id 1 has 2 tokens in llama.cpp's memory; we count 0"),
        (2, 4, "seq_id 2 has 4 tokens in llama.cpp's memory; we count 0"),
        (3, 1, "forgotten cells up to position 1 in llama.cpp's memory; we count 0"),
    ],
)
def test_what_the_library_counts_otherwise_is_found(
    load_random: LoadRandom, make_context: MakeContext, seq_id: int, n_tokens: int, words: str
) -> None:
    """Two slots, the seq_id for copies, and that of forgotten cells."""
    context = make_context(load_random(PLAIN))
    fill(context, 0, 5)
    assert context.kv.count_tokens() == [5, 0]
    memory = capi.llama_get_memory(context.handle)
    if seq_id:
        capi.llama_memory_seq_cp(memory, 0, seq_id, 0, n_tokens)
    else:
        capi.llama_memory_seq_rm(memory, 0, n_tokens, -1)
    with pytest.raises(KvMismatch, match=words):
        context.kv.count_tokens()


def test_cells_that_our_own_counts_disagree_about_are_found(load_random: LoadRandom, make_context: MakeContext) -> None:
    context = make_context(load_random(PLAIN))
    fill(context, 0, 5)
    context.kv.share(SlotId(0), SlotId(1), 4)
    assert context.kv.count_tokens() == [5, 4]
    for n_wrong in (4, 10):
        context.kv._spans.n_cells = n_wrong
        with pytest.raises(KvMismatch, match=f"slots hold 9 tokens, but {n_wrong} cells are counted"):
            context.kv.count_tokens()


# ── memories that cannot be cut ──────────────────────────────────────────────────────────────────

ROUNDING = 1.0
"""It is that of test_sharing.py: other places of cells move a logit by 0.5 at most, another token by 3 and more."""

UNCUT = pytest.mark.parametrize("kind", [SLIDING, RECURRENT, HYBRID], ids=str)
"""Made with `swa_full=False`, which is nothing to a recurrent one."""


@pytest.mark.parametrize(("kind", "n_slots"), [(PLAIN, MAX_SEQ_IDS), (SLIDING, MAX_SEQ_IDS // 2)], ids=str)
def test_without_a_seq_id_left_nothing_can_be_shared(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind, n_slots: int
) -> None:
    """A sliding window takes two for each slot."""
    sizes = {"n_batch": 512, "n_ctx": 1024}
    assert make_context(load_random(kind), n_seq_max=n_slots - 1, **sizes).kv.can_share
    assert not make_context(load_random(kind), n_seq_max=n_slots, **sizes).kv.can_share


def test_what_cannot_be_cut_is_neither_shared_nor_saved(load_random: LoadRandom, make_context: MakeContext) -> None:
    plain = make_context(load_random(PLAIN))
    fill(plain, 0, 4)
    saved = plain.kv.save(SlotId(0), 0)
    runner = LlamaRunner(load_random(SLIDING), make_context(load_random(SLIDING), swa_full=False))
    runner.run(Step("prefill", (Slice(SlotId(0), 0, [TokenId(5)] * 4, GREEDY),)))
    assert not runner.kv.can_share
    kv, one, other = runner.kv, SlotId(0), SlotId(1)
    for use in (lambda: kv.share(one, other, 2), lambda: kv.save(one, 0), lambda: kv.load(other, [saved], 2)):
        with pytest.raises(AssertionError, match="memory cannot be cut"):
            use()
    assert runner.kv.n_free_cells == 508


@UNCUT
def test_it_is_served_next_to_others_and_after_them(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """Beyond the window, and in a slot that another job had."""
    model = load_random(kind)
    prompts = [[TokenId(3 + i % 200) for i in range(n)] for n in (4 * WINDOW, 3)]
    alone = [answer(LlamaRunner(model, make_context(model, swa_full=False)), {0: prompt})[0] for prompt in prompts]
    runner = LlamaRunner(model, make_context(model, swa_full=False))
    for slots in ((0, 1), (1, 0)):
        beside = answer(runner, dict(zip(slots, prompts, strict=True)))
        assert [beside[slot] for slot in slots] == alone
    assert runner.kv.n_free_cells == 512


def test_a_small_window_is_not_gone_back_behind_where_it_was_written_over(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """The library would take the end away, and go on without what the window saw before it."""
    context = make_context(load_random(SLIDING), swa_full=False)
    fill(context, 0, 400)
    with pytest.raises(RuntimeError, match="slot 0 cannot go on from position 40"):
        context.kv.trim(SlotId(0), 40)
    assert context.kv.n_cells(SlotId(0)) == 400
    context.kv.trim(SlotId(0), 399)
    context.decode([Slice(SlotId(0), 399, [TokenId(3)], GREEDY)])
    again = context.rows()[0].copy()
    context.kv.trim(SlotId(0), 0)
    fill(context, 0, 399)
    context.decode([Slice(SlotId(0), 399, [TokenId(3)], GREEDY)])
    assert np.abs(context.rows()[0] - again).max() < ROUNDING


def test_a_window_that_no_layer_has_changes_nothing(load_random: LoadRandom, make_context: MakeContext) -> None:
    """EXAONE 4 names its window in sizes that do not use it."""
    context = make_context(load_random(NAMED_ONLY))
    fill(context, 0, 40)
    assert context.kv.save(SlotId(0), 5).n_tokens == 35


def answer(runner: LlamaRunner, prompts: dict[int, list[TokenId]], n_tokens: int = 8) -> dict[int, list[TokenId]]:
    """Greedy; the slots are empty again."""
    first = tuple(Slice(SlotId(slot), 0, prompt, GREEDY) for slot, prompt in prompts.items())
    drawn = {sampled.slot: [sampled.token] for sampled in runner.run(Step("prefill", first))}
    for i in range(n_tokens - 1):
        slices = [Slice(SlotId(slot), len(prompts[slot]) + i, own[-1:], GREEDY) for slot, own in drawn.items()]
        for sampled in runner.run(Step("decode", tuple(slices))):
            drawn[sampled.slot].append(sampled.token)
    for slot, prompt in prompts.items():
        assert runner.kv.count_tokens()[slot] == len(prompt) + n_tokens - 1
        runner.kv.trim(SlotId(slot), 0)
    assert not any(runner.kv.count_tokens())
    return {int(slot): tokens for slot, tokens in drawn.items()}
