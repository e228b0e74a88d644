"""The order of rounds: the sides take turns with the same prompts, and the warm-up is not kept."""

import asyncio
from collections.abc import Sequence

from tests.tools.bench.fake_side import FakeSide
from tools.bench.prompts import Prompts
from tools.bench.scenarios import SCENARIOS, WARM_UP, Scenario
from tools.bench.session import Rounds

FEW = SCENARIOS[:2]
Book = list[tuple[str, str, tuple[str, ...]]]


def played(
    sides: Sequence[FakeSide], n_rounds: int, scenarios: Sequence[Scenario] = FEW
) -> tuple[Rounds, list[tuple[int, str]]]:
    heard: list[tuple[int, str]] = []
    rounds = Rounds(scenarios, Prompts(1), lambda number, one: heard.append((number, one.name)))

    async def play() -> None:
        await rounds.warm_up(sides)
        await rounds.play(range(1, n_rounds + 1), sides)

    asyncio.run(play())
    return rounds, heard


def three(book: Book) -> list[FakeSide]:
    return [FakeSide(name, [1.0], book) for name in ("ours", "peer", "other")]


def test_every_side_is_given_the_same_prompts_in_a_round_and_others_in_the_next() -> None:
    book: Book = []
    played(three(book), 2)
    for scenario, n_played in ((WARM_UP, 1), (FEW[0], 2), (FEW[1], 2)):
        prompts = [prompts for _, name, prompts in book if name == scenario.name]
        rounds = [set(prompts[start : start + 3]) for start in range(0, len(prompts), 3)]
        assert [len(found) for found in rounds] == [1] * n_played
        assert len(set.union(*rounds)) == n_played


def test_the_sides_go_forwards_and_backwards_in_turn() -> None:
    book: Book = []
    played(three(book), 2, FEW[:1])
    names = [side for side, scenario, _ in book if scenario == FEW[0].name]
    assert names == ["ours", "peer", "other", "other", "peer", "ours"]


def test_a_round_has_every_scenario_before_the_next_begins() -> None:
    _, heard = played(three([]), 1)
    assert heard == [(0, WARM_UP.name), *((1, scenario.name) for scenario in FEW)]


def test_the_warm_up_is_not_kept() -> None:
    ours = FakeSide("ours", [5.0, 6.0, 7.0])
    rounds, _ = played([ours], 2)
    kept = [[turn.numbers[one.scenario.own[0].name] for turn in one.turns["ours"]] for one in rounds.played]
    assert kept == [[5.0, 6.0], [5.0, 6.0]]
    assert [name for _, name, _ in ours.book].count(WARM_UP.name) == 1


def test_a_side_plays_only_its_scenarios() -> None:
    rounds, _ = played([FakeSide("ours", [1.0]), FakeSide("tool", [2.0], only=FEW[0].name)], 1)
    assert [list(one.turns) for one in rounds.played] == [["ours", "tool"], ["ours"]]
