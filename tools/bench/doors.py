"""`python -m tools.bench doors`: what a chat at `/v1` costs beyond its rendered prompt at `/execute`.

One worker, both doors in turn, prompts of the same length that begin differently, so that no door finds in the prefix
cache what the other computed. Owns the run, the bounds and what is printed. Never downloads.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import msgspec
import rich_click as click
import uvloop

from tools.bench.answers import Answer, Ask
from tools.bench.dialects import Chat
from tools.bench.exchange import ask_once
from tools.bench.load import Server, play
from tools.bench.measures import Measure, check, first_token, stream_rate, total_rate
from tools.bench.prompts import Prompts
from tools.bench.report import Spread
from client.child import without_settings
from tools.bench.servers import our_worker, served
from tools.bench.sides import until_quiet
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.errors import WorkerError

MOST_FIRST_TOKEN_MS, LEAST_RATE = 3.0, 0.98
_N_CELLS, _N_SLOTS = 16_384, 8
_SEED = 1


class NotAnswered(WorkerError):
    """A request of the measurement failed: one line with its error, exit 1."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is asked of each door in a round, and the number that is read from the answers."""

    title: str
    asks: Callable[[Prompts], list[Ask]]
    measure: Measure
    is_rate: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A comparison's numbers: of each round, the one at `/execute` and the one at `/v1`."""

    comparison: Comparison
    rounds: Sequence[tuple[float, float]]

    @property
    def apart(self) -> Spread:
        """Round by round, because a machine's speed changes more between rounds than within one."""
        is_rate = self.comparison.is_rate
        return Spread.of([chat / execute if is_rate else chat - execute for execute, chat in self.rounds])

    @property
    def holds(self) -> bool:
        found = self.apart.median
        return found >= LEAST_RATE if self.comparison.is_rate else found <= MOST_FIRST_TOKEN_MS

    @property
    def cells(self) -> tuple[str, ...]:
        is_rate, unit, apart = self.comparison.is_rate, self.comparison.measure.unit, self.apart
        return (
            self.comparison.title,
            *(f"{median(side):.2f} {unit}" for side in zip(*self.rounds, strict=True)),
            self.shown(apart.median),
            f"{self.shown(apart.least)} to {self.shown(apart.most)}",
            f"≥ {LEAST_RATE}" if is_rate else f"≤ {MOST_FIRST_TOKEN_MS:+g} ms",
            "ok" if self.holds else "MISSED",
        )

    def shown(self, apart: float) -> str:
        return f"× {apart:.3f}" if self.comparison.is_rate else f"{apart:+.2f} ms"


def bad_news(found: Sequence[Found]) -> list[str]:
    """What is beyond its bound."""
    return [f"{one.comparison.title}: {one.shown(one.apart.median)}" for one in found if not one.holds]


COMPARISONS = (
    Comparison(
        "first token, 8 words",
        lambda prompts: [Ask(prompt=prompts.of(8), n_tokens=2, phase=phase) for phase in range(8)],
        first_token(),
        is_rate=False,
    ),
    Comparison(
        "1 stream, 64 words / 96 tokens",
        lambda prompts: [Ask(prompt=prompts.of(64), n_tokens=96)],
        stream_rate(),
        is_rate=True,
    ),
    Comparison(
        "8 streams, 64 words / 96 tokens",
        lambda prompts: [Ask(prompt=prompts.of(64), n_tokens=96) for _ in range(_N_SLOTS)],
        total_rate(),
        is_rate=True,
    ),
)


@click.command("doors")
@click.option("--model", metavar="REF", help="A chat model that is here. [default: the catalogue's]")
@where
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="CPU threads.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=15, show_default=True, help="Besides a warm-up.")
def doors(model: str | None, models_dir: Path, catalog: Path | None, threads: int, rounds: int) -> None:
    """Time chats at /v1/chat/completions beside their rendered prompts at /execute, on one worker.

    Exit 1 when a chat's first token comes more than 3 ms later, or its tokens at less than 0.98 of the rate. Measure on
    an idle machine.
    """
    flags = ("--ctx-size", str(_N_CELLS), "--parallel", str(_N_SLOTS), "--threads", str(threads))
    plan = our_worker(present(model, models_dir, catalog), flags)

    async def run() -> list[Found]:
        with tempfile.TemporaryDirectory(prefix="llorch-bench-") as logs:
            async with served(plan, Path(logs), without_settings()) as server:
                return await compare(server, rounds)

    found = uvloop.run(run())
    print_table(["", ">/execute", ">/v1", ">apart", ">in rounds", ">bound", ""], [one.cells for one in found])
    check(bad_news(found))


async def compare(server: Server, n_rounds: int) -> list[Found]:
    """So many rounds of every comparison, the doors in turns the first. Raises: NotAnswered, NotReached."""
    prompts = Prompts(_SEED)
    numbers: list[list[tuple[float, float]]] = [[] for _ in COMPARISONS]
    for number in range(n_rounds + 1):
        for comparison, found in zip(COMPARISONS, numbers, strict=True):
            pair = await _round(server, comparison, prompts, is_chat_first=bool(number % 2))
            if number:
                found.append(pair)
    return [Found(comparison, pairs) for comparison, pairs in zip(COMPARISONS, numbers, strict=True)]


async def _round(
    server: Server, comparison: Comparison, prompts: Prompts, *, is_chat_first: bool
) -> tuple[float, float]:
    """The number of `/execute` and that of `/v1`."""
    sides: Mapping[bool, tuple[Server, list[Ask]]] = {
        False: (server, [await _rendered(server, ask) for ask in comparison.asks(prompts)]),
        True: (replace(server, dialect=Chat()), comparison.asks(prompts)),
    }
    found: dict[bool, float] = {}
    for is_chat in (is_chat_first, not is_chat_first):
        await until_quiet(list(server.pids.values()))
        found[is_chat] = comparison.measure.of(_checked(await play(*sides[is_chat])))
    return found[False], found[True]


def _checked(answers: Sequence[Answer]) -> Sequence[Answer]:
    for answer in answers:
        if answer.error:
            raise NotAnswered(answer.error)
    return answers


class _Rendered(msgspec.Struct, frozen=True):
    prompt: str


async def _rendered(server: Server, ask: Ask) -> Ask:
    """The same as raw model input."""
    chat = Chat()
    exchange = await ask_once(server.address, "POST", f"{chat.path}/render", chat.body(ask))
    return replace(ask, prompt=msgspec.json.decode(exchange.body, type=_Rendered).prompt)
