"""The table of scenarios says what is asked."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tools.bench.answers import Ask
from tools.bench.prompts import Prompts
from tools.bench.scenarios import (
    CONVERSATIONS,
    LARGE,
    N_JOBS,
    N_SLOTS,
    SCENARIOS,
    WARM_UP,
    Scenario,
)
from tools.bench.texts import n_words_of

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def asks(name: str, seed: int = 1) -> list[Ask]:
    return BY_NAME[name].asks(Prompts(seed))


def n_words(ask: Ask) -> int:
    return len(ask.prompt.split())


@pytest.mark.parametrize("scenario", [*SCENARIOS, *LARGE, *CONVERSATIONS, WARM_UP], ids=lambda scenario: scenario.name)
def test_a_seed_gives_a_scenario_s_requests_in_the_order_of_their_phases(scenario: Scenario) -> None:
    found = scenario.asks(Prompts(9))
    assert found == scenario.asks(Prompts(9))
    assert found != scenario.asks(Prompts(10))
    assert all(before.phase <= after.phase for before, after in pairwise(found))
    assert all(len(ask.prompt) <= 32_768 for ask in found)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *LARGE, *CONVERSATIONS], ids=lambda scenario: scenario.name)
def test_a_measure_has_one_meaning_in_a_scenario(scenario: Scenario) -> None:
    names = [measure.name for measure in scenario.measures]
    assert len(names) == len(set(names))
    assert names[0] == scenario.own[0].name


def test_names_are_different_and_words_that_a_shell_takes() -> None:
    assert len(BY_NAME) == len(SCENARIOS)
    assert all(name.replace("-", "").isalnum() for name in BY_NAME)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        *((f"{n}-streams{suffix}", [(64, 96, 0, False)] * n) for n in (4, 8, 16) for suffix in ("", "-no-drafts")),
        ("late-prompt", [(24, 160, 0, False)] * 3 + [(900, 8, 0, True)]),
        ("again", [(400, 8, 0, False), (402, 8, 1, False)]),
    ],
)
def test_a_scenario_s_requests_have_its_words_tokens_and_phases(
    name: str, shapes: list[tuple[int, int, int, bool]]
) -> None:
    assert [(n_words(ask), ask.n_tokens, ask.phase, ask.is_late) for ask in asks(name)] == shapes


@pytest.mark.parametrize("scenarios", [SCENARIOS, LARGE], ids=["all", "large"])
def test_what_drafts_gain_is_measured_by_the_same_requests_with_and_without_them(scenarios: Sequence[Scenario]) -> None:
    by_name = {scenario.name: scenario for scenario in scenarios}
    without_drafts = [one for one in scenarios if one.name.endswith("-no-drafts")]
    pairs = [(by_name.get(one.name.removesuffix("-no-drafts")), one) for one in without_drafts]
    assert [one.name for _, one in pairs][:4] == [
        f"{n}-no-drafts" for n in ("1-stream", "4-streams", "8-streams", "16-streams")
    ]
    for with_drafts, without in pairs:
        assert not without.has_drafts
        if with_drafts is not None:
            assert with_drafts.has_drafts
            assert with_drafts.asks(Prompts(1)) == without.asks(Prompts(1))
            assert (with_drafts.title, with_drafts.text) == (without.title, without.text)


def test_real_text_is_distinguished_and_has_as_many_words() -> None:
    real, random = BY_NAME["8-streams-real"], BY_NAME["8-streams"]
    assert (real.title, real.text != random.text) == (random.title, True)
    assert len(real.asks(Prompts(1))) == len(random.asks(Prompts(1)))
    for ask in real.asks(Prompts(1)):
        assert n_words_of(ask.prompt) == pytest.approx(64, abs=1)


def test_large_models_are_asked_less_of_the_same_and_in_no_more_than_1000_words() -> None:
    assert {scenario.name for scenario in LARGE} < set(BY_NAME)
    for scenario in LARGE:
        fewer, more = scenario.asks(Prompts(1)), BY_NAME[scenario.name].asks(Prompts(1))
        assert sum(ask.n_tokens for ask in fewer) <= sum(ask.n_tokens for ask in more)
        assert max(n_words(ask) for ask in fewer) <= 1000
        assert [measure.bound for measure in scenario.own] == [measure.bound for measure in BY_NAME[scenario.name].own]


@pytest.mark.parametrize(("name", "size"), [("1-stream", (64, 96)), ("first-token", (400, 8)), ("sampled", (64, 96))])
def test_lone_streams_come_one_after_another(name: str, size: tuple[int, int]) -> None:
    found = asks(name)
    assert {(n_words(ask), ask.n_tokens) for ask in found} == {size}
    assert [ask.phase for ask in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("scenario", "n_at_once", "n_turns", "n_common"), [(CONVERSATIONS[0], 1, 20, 48), (CONVERSATIONS[1], 8, 10, 400)]
)
def test_each_prompt_of_a_conversation_is_the_one_before_and_225_words_more(
    scenario: Scenario, n_at_once: int, n_turns: int, n_common: int
) -> None:
    *turns, common = scenario.asks(Prompts(1))
    assert [ask.phase for ask in turns] == [phase for phase in range(n_turns) for _ in range(n_at_once)]
    assert (n_words(common), common.phase) == (n_common, n_turns)
    assert len({ask.prompt for ask in turns}) == n_at_once * n_turns
    for place, ask in enumerate(turns):
        before = turns[place - n_at_once] if ask.phase else common
        assert ask.prompt.startswith(f"{before.prompt}\n\n" if ask.phase else f"{before.prompt} ")
        assert n_words(ask) - n_words(before) == 225 + (0 if ask.phase else 2)


def test_eight_share_400_words_and_have_8_of_their_own() -> None:
    prompts = [ask.prompt.split() for ask in asks("shared-prefix")]
    assert len(prompts) == 8
    assert len({tuple(prompt[:400]) for prompt in prompts}) == 1
    assert len({tuple(prompt[400:]) for prompt in prompts}) == 8
    assert {len(prompt) for prompt in prompts} == {408}


def test_a_prompt_comes_again_with_words_more() -> None:
    once, again = asks("again")
    assert again.prompt.startswith(once.prompt + " ")


def test_only_one_scenario_is_not_greedy() -> None:
    sampled = [name for name in BY_NAME if any(ask.temperature for ask in asks(name))]
    assert sampled == ["sampled"]
    assert {(ask.temperature, ask.top_p) for ask in asks("sampled")} == {(0.8, 0.95)}
    assert len({ask.seed for ask in asks("sampled")}) == len(asks("sampled"))


def test_an_agent_s_conversation_grows_from_request_to_request() -> None:
    found = asks("agent-loop")
    assert [ask.phase for ask in found] == list(range(20))
    assert all(later.prompt.startswith(earlier.prompt) for earlier, later in pairwise(found))
    assert all(ask.prompt.endswith("### Action\n") for ask in found)
    assert [ask.prompt.count('"tool": "write_file"') for ask in found] == list(range(1, 21))


def test_64_jobs_come_at_once_after_the_streams_that_are_their_measure() -> None:
    phases = [ask.phase for ask in asks("64-jobs")]
    assert phases == [0] * N_SLOTS + [1] * N_JOBS
    assert BY_NAME["64-jobs"].worker_flags == ("--parallel", "8")
    assert not BY_NAME["64-jobs"].peers


@pytest.mark.parametrize(("name", "n_long"), [("5", 5), ("5-in-512", 5), ("8", 8)])
def test_a_small_one_runs_alone_then_among_long_ones_which_then_run_without_it(name: str, n_long: int) -> None:
    alone, *beside, late = asks(f"small-among-{name}")[: n_long + 2]
    without = asks(f"small-among-{name}")[n_long + 2 :]
    assert (n_words(alone), alone.n_tokens) == (n_words(late), late.n_tokens) == (16, 24)
    assert {(n_words(ask), ask.n_tokens, ask.at_s) for ask in (*beside, *without)} == {(48, 320, 0.0)}
    assert late.at_s > 0
    assert [ask.phase for ask in (alone, *beside, late, *without)] == [0] + [1] * (n_long + 1) + [2] * n_long


def test_a_mixture_has_short_and_long_requests_that_arrive_one_by_one() -> None:
    found = asks("mixture")
    times = [ask.at_s for ask in found]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert len(set(times)) == len(found) == 24
    assert min(n_words(ask) for ask in found) < 40
    assert max(n_words(ask) for ask in found) > 150


def test_in_a_run_no_two_requests_begin_alike_but_those_that_should() -> None:
    """Seven rounds of everything from one seed."""
    prompts = Prompts(3)
    beginnings = []
    for _ in range(7):
        for scenario in SCENARIOS:
            found = {" ".join(ask.prompt.lstrip("# ").split()[:2]) for ask in scenario.asks(prompts)}
            beginnings += list(found)
    assert len(beginnings) == len(set(beginnings))


@pytest.mark.parametrize("name", ["code-edit", "quoting"])
def test_repetitive_prompts_hold_most_of_their_answer_already(name: str) -> None:
    for ask in asks(name):
        _, body = ask.prompt.split("\n", 1)
        half = body.strip()[:200]
        assert body.count(half) == 2
