"""Draft tokens: whatever is drafted, the draws are those of one token at a time."""

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from tests.llama.company import positions
from tests.llama.conftest import GREEDY, LoadRandom, MakeContext
from tests.llama.random_models import PLAIN
from worker.engine.step import BadBatch, Sampled, Slice, Step
from worker.limits import MAX_DRAFTS
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SamplingParams, SlotId, TokenId

pytestmark = pytest.mark.model

PROMPT = [TokenId(3 + 7 * i % 250) for i in range(20)]
N_TOKENS = 40
ENDS = tuple(TokenId(i) for i in range(3, 40))

Guess = Callable[[list[TokenId], int], list[TokenId]]
"""(the right ones from here on, how many at most) → guesses."""


def perfect(right: list[TokenId], n: int) -> list[TokenId]:
    return right[:n]


def wrong(right: list[TokenId], n: int) -> list[TokenId]:
    return [TokenId((token + 1) % 262) for token in right[:n]]


def half_right(right: list[TokenId], n: int) -> list[TokenId]:
    return right[: n // 2] + wrong(right[n // 2 :], n - n // 2)


def at_random(right: list[TokenId], n: int) -> list[TokenId]:
    chance = Random(len(right))
    some = right[: chance.randint(0, n)]
    return [token if chance.random() < 0.7 else TokenId(chance.randrange(262)) for token in some]


SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=5, temperature=1.0, top_p=0.95),
    "penalties": SamplingParams(seed=6, temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4),
    "log-probabilities": SamplingParams(seed=7, temperature=1.2, top_k=40, logprobs=3),
    "late stop tokens": SamplingParams(seed=8, temperature=1.5, min_tokens=12, stop_token_ids=ENDS),
}


@pytest.fixture
def runner(load_random: LoadRandom, make_context: MakeContext) -> LlamaRunner:
    model = load_random(PLAIN)
    return LlamaRunner(model, make_context(model, type_k="bf16"))


def is_over(drawn: list[Sampled], sampling: SamplingParams) -> bool:
    last = drawn[-1]
    return len(drawn) >= N_TOKENS or last.is_end or last.token in sampling.stop_token_ids


def prefilled(runner: LlamaRunner, slot: int, sampling: SamplingParams) -> list[Sampled]:
    return runner.run(Step("prefill", (Slice(SlotId(slot), 0, PROMPT, sampling),)))


def one_at_a_time(runner: LlamaRunner, sampling: SamplingParams) -> list[Sampled]:
    drawn = prefilled(runner, 0, sampling)
    while not is_over(drawn, sampling):
        tokens = [sampled.token for sampled in drawn]
        start = len(PROMPT) + len(tokens) - 1
        drawn += runner.run(Step("decode", (Slice(SlotId(0), start, tokens[-1:], sampling, tokens),)))
    runner.kv.trim(SlotId(0), 0)
    return drawn


def guessing(
    runner: LlamaRunner, sampling: SamplingParams, right: list[TokenId], guess: Guess, n_most: int = 7
) -> tuple[list[Sampled], int]:
    """The drawn tokens, and the number of steps."""
    drawn, n_steps = prefilled(runner, 0, sampling), 0
    while not is_over(drawn, sampling):
        tokens = [sampled.token for sampled in drawn]
        guesses = guess(right[len(tokens) :], min(n_most, N_TOKENS - len(tokens) - 1))
        start = len(PROMPT) + len(tokens) - 1
        slice_ = Slice(SlotId(0), start, [*tokens[-1:], *guesses], sampling, tokens, n_drafts=len(guesses))
        new = runner.run(Step("decode", (slice_,)))
        drawn, n_steps = drawn + new, n_steps + 1
        assert runner.kv.n_cells(SlotId(0)) == start + 1 + len(guesses)
        runner.kv.trim(SlotId(0), start + len(new))
    assert positions(runner.context, 0) == list(range(len(PROMPT) + len(drawn) - 1))
    runner.kv.trim(SlotId(0), 0)
    return drawn, n_steps


@pytest.mark.parametrize("guess", [perfect, wrong, half_right, at_random])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_guesses_change_no_draw(runner: LlamaRunner, name: str, guess: Guess) -> None:
    sampling = SAMPLINGS[name]
    expected = one_at_a_time(runner, sampling)
    drawn, n_steps = guessing(runner, sampling, [sampled.token for sampled in expected], guess)
    assert drawn == expected
    if guess is perfect:
        assert n_steps <= -(-len(expected) // 8) + 1
    if guess is wrong:
        assert n_steps == len(expected) - 1


def test_a_stop_token_that_was_drafted_is_the_last(runner: LlamaRunner) -> None:
    """A job that has ended draws nothing, even if more drafts were right."""
    sampling = SAMPLINGS["seeded"]
    free = [sampled.token for sampled in one_at_a_time(runner, sampling)]
    stop = next(token for token in free[2:7] if token not in free[:2])
    n_before = free.index(stop)
    stopping = replace(sampling, stop_token_ids=(stop,))
    prefilled(runner, 0, stopping)
    slice_ = Slice(SlotId(0), len(PROMPT), free[:9], stopping, free[:1], n_drafts=8)
    drawn = runner.run(Step("decode", (slice_,)))
    assert [sampled.token for sampled in drawn] == free[1 : n_before + 1]
    assert n_before < 8


def test_slots_with_and_without_guesses_share_a_step(runner: LlamaRunner) -> None:
    sampling = SAMPLINGS["seeded"]
    right = [sampled.token for sampled in one_at_a_time(runner, sampling)]
    for slot in (0, 1):
        prefilled(runner, slot, sampling)
    guessed = Slice(SlotId(0), 20, [*right[:4], *wrong(right[4:], 2)], sampling, right[:1], n_drafts=5)
    plain = Slice(SlotId(1), 20, right[:1], sampling, right[:1])
    fewer = Slice(SlotId(0), 20, right[:4], sampling, right[:1], n_drafts=3)
    for slices in ((guessed, plain), (plain, fewer)):
        drawn = runner.run(Step("decode", slices))
        own = [[sampled.token for sampled in drawn if sampled.slot == slot] for slot in (0, 1)]
        assert own == [right[1:5], right[1:2]]
        for slot in (0, 1):
            runner.kv.trim(SlotId(slot), 20)


def test_guesses_for_as_many_as_there_may_be_are_drawn_in_one_batch(
    load_random: LoadRandom, make_context: MakeContext
) -> None:
    """However small a batch was asked for; and a micro-batch that cuts them changes nothing."""
    model = load_random(PLAIN)
    small = LlamaRunner(model, make_context(model, type_k="bf16", n_batch=4, n_ubatch=4))
    right = [sampled.token for sampled in one_at_a_time(small, GREEDY)]
    drawn, n_steps = guessing(small, GREEDY, right, perfect, MAX_DRAFTS)
    assert [sampled.token for sampled in drawn] == right
    assert n_steps == 2


@pytest.mark.parametrize(
    ("n_tokens", "n_drafts", "sampling", "message"),
    [
        (1, 1, GREEDY, "drafts among"),
        (3, 3, GREEDY, "drafts among"),
        (3, -1, GREEDY, "drafts among"),
        (3, 1, None, "drafts among"),
        (MAX_DRAFTS + 3, MAX_DRAFTS + 2, GREEDY, f"logits of {MAX_DRAFTS + 3} tokens; a batch has at most"),
    ],
)
def test_guesses_that_cannot_be_drawn_are_refused(
    runner: LlamaRunner, n_tokens: int, n_drafts: int, sampling: SamplingParams | None, message: str
) -> None:
    slice_ = Slice(SlotId(0), 0, [TokenId(5)] * n_tokens, sampling, n_drafts=n_drafts)
    with pytest.raises(BadBatch, match=message):
        runner.run(Step("decode", (slice_,)))
    assert runner.kv.n_free_cells == 512


def test_logits_that_are_not_numbers_end_the_draws(model_of_nan: Model, make_context: MakeContext) -> None:
    """The token of such a draw is 0; a guess of 0 has not come true."""
    runner = LlamaRunner(model_of_nan, make_context(model_of_nan))
    slice_ = Slice(SlotId(0), 0, [TokenId(5), TokenId(0), TokenId(0)], GREEDY, n_drafts=2)
    [sampled] = runner.run(Step("decode", (slice_,)))
    assert sampled.error is not None
