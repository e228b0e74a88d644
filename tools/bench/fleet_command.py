"""`python -m tools.bench fleet`: what routing by prefix gains two workers, and what a worker's death costs.

Owns the options, the bounds, the report. Refuses to know how a fleet is started (fleet.py) and what is said
(conversations.py). Starts servers as child processes; never downloads.
"""

import asyncio
import secrets
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import rich_click as click
import uvloop

from client.child import without_settings
from parity.provenance import Machine, now_rfc3339, this_machine
from tools.bench.answers import per_s, percentile
from tools.bench.conversations import Shape, Turn, converse
from tools.bench.fleet import CACHE_AWARE, KV_AWARE, RAY, ROUND_ROBIN, SIDES, Means, fleet
from tools.bench.load_command import split_flags
from tools.bench.measures import check
from tools.markdown import Cells, table
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.errors import UsageError

MIN_HITS, MAX_FIRST_TOKEN = 2.0, 0.5
"""The bounds as multiples of the numbers of round robin."""
_JUDGED = (KV_AWARE, RAY)
_WORKER_FLAGS = "--ctx-size 4096 --prefix-cache-mb 46 --threads 1"
_USUAL = Shape()
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of one fleet."""

    side: str
    lost_a_worker: bool
    n_turns: int
    n_answered: int
    n_repeated: int
    """Answered after it was asked again."""
    n_hung: int
    n_jobs: int
    """The successful jobs in the workers' own logs: one for each answer, unless one was computed twice."""
    hit_rate: float
    """The share of all prompt tokens that were cached."""
    first_token_ms: float
    """The median, of the tries that were answered."""
    first_token_p95_ms: float
    whole_s: float
    failures: Sequence[str]

    @classmethod
    def of(cls, side: str, turns: Sequence[Turn], n_jobs: int, whole_s: float, *, lost_a_worker: bool) -> "Played":
        answered = [turn for turn in turns if turn.is_answered]
        firsts_ms = [1000 * turn.first_s for turn in answered]
        return cls(
            side=side,
            lost_a_worker=lost_a_worker,
            n_turns=len(turns),
            n_answered=len(answered),
            n_repeated=sum(bool(turn.failures) for turn in answered),
            n_hung=sum(turn.n_hung for turn in turns),
            n_jobs=n_jobs,
            hit_rate=per_s(sum(turn.n_cached for turn in answered), sum(turn.n_prompt for turn in answered)),
            first_token_ms=median(firsts_ms) if firsts_ms else 0.0,
            first_token_p95_ms=percentile(firsts_ms, 95),
            whole_s=whole_s,
            failures=[failure for turn in turns for failure in turn.failures],
        )

    @property
    def cells(self) -> Cells:
        return (
            f"{self.side}, a worker killed" if self.lost_a_worker else self.side,
            f"{self.n_answered} of {self.n_turns}",
            f"{self.n_repeated}",
            f"{self.n_jobs}",
            f"{self.n_hung}",
            f"{self.hit_rate:.3f}",
            f"{self.first_token_ms:.0f} ms",
            f"{self.first_token_p95_ms:.0f} ms",
            f"{self.whole_s:.0f} s",
        )


COLUMNS = ("", ">answered", ">asked again", ">jobs", ">hung", ">hits", ">first token", ">p95", ">all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run."""

    created: str
    machine: Machine
    model: str
    worker_flags: str
    parallel: int
    shape: Shape
    seed: int
    played: Sequence[Played]

    @property
    def bad_news(self) -> list[str]:
        """The numbers that break a bound, and all lost answers."""
        news = [f"{one.cells[0]}: {fault}" for one in self.played for fault in _faults(one)]
        whole = {one.side: one for one in self.played if not one.lost_a_worker}
        if (base := whole.get(ROUND_ROBIN)) is not None:
            news += [fault for side in _JUDGED if side in whole for fault in _beside(whole[side], base)]
        return news


def _faults(one: Played) -> list[str]:
    n_beyond = one.n_jobs - one.n_answered
    counts = {"not answered": one.n_turns - one.n_answered, "hung": one.n_hung}
    if one.lost_a_worker:
        # What a worker has logged last may be lost with it.
        counts["answered twice"] = max(0, n_beyond)
    else:
        counts |= {"asked again": one.n_repeated, "jobs more or less than answers": abs(n_beyond)}
    return [f"{count} {what}" for what, count in counts.items() if count]


def _beside(one: Played, base: Played) -> list[str]:
    hits, first = per_s(one.hit_rate, base.hit_rate), per_s(one.first_token_ms, base.first_token_ms)
    return [
        *([f"{one.side}: hits × {hits:.2f}, wanted × {MIN_HITS:g}"] if hits < MIN_HITS else []),
        *([f"{one.side}: first token × {first:.2f}, wanted × {MAX_FIRST_TOKEN:g}"] if first > MAX_FIRST_TOKEN else []),
    ]


@click.command("fleet")
@click.option("--model", metavar="REF", help="A chat model that is here. [default: the catalogue's]")
@where
@click.option("--vllm-router", type=_FILE, help="The program of that name.")
@click.option("--ray-serve", type=_FILE, help="The program `serve` of an environment with Ray Serve.")
@click.option("--side", "sides", type=click.Choice(SIDES), multiple=True, help="Only these. [default: what is there]")
@click.option("--conversations", type=click.IntRange(1), default=_USUAL.n_conversations, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=_USUAL.n_turns, show_default=True)
@click.option("--groups", type=click.IntRange(1), default=_USUAL.n_groups, show_default=True, help="System prompts.")
@click.option(
    "--open", "n_open", type=click.IntRange(1), default=_USUAL.n_open, show_default=True, help="Conversations at once."
)
@click.option(
    "--think-s",
    type=click.FloatRange(0),
    default=_USUAL.think_s,
    show_default=True,
    help="Before each turn, on average.",
)
@click.option("--parallel", type=click.IntRange(1, 256), default=8, show_default=True, help="Of each worker.")
@click.option(
    "--worker-flags", default=_WORKER_FLAGS, show_default=True, callback=split_flags, help="As one argument, of serve."
)
@click.option("--kill", is_flag=True, help="A worker is killed after a third of the turns, and comes back.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the conversations. [default: random]")
@click.option("--out", type=_FOLDER, help="Write report.json, report.md and the logs there.")
def fleet_command(*, seed: int | None, out: Path | None, **options: Any) -> None:
    """Hold conversations with two workers behind a router, and compare its policies with round robin.

    Each side has two fresh workers and the same conversations, one side after the other. Exit 1 when a turn was not
    answered, was answered twice or hung, when kv_aware or ray knows less than twice as many of the prompts' tokens as
    round_robin, or when their first token takes more than half the time. Measure on an idle machine.
    """
    # As Ctrl-C, so that the servers that were started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = Asked(**options)
    with tempfile.TemporaryDirectory(prefix="llorch-fleet-") as temporary:
        logs = Path(temporary) if out is None else out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        report = uvloop.run(_measured(asked, secrets.randbits(32) if seed is None else seed, logs.absolute()))
    rows = [one.cells for one in report.played]
    if out is not None:
        (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        (out / "report.md").write_text(table(COLUMNS, rows) + "\n", encoding="utf-8")
    print_table(COLUMNS, rows)
    check(report.bad_news)


async def _measured(asked: "Asked", seed: int, logs: Path) -> Report:
    sides = asked.names
    model = present(asked.model, asked.models_dir, asked.catalog)
    means = Means(
        model=model,
        worker_flags=asked.worker_flags,
        parallel=asked.parallel,
        vllm_router=asked.vllm_router,
        ray_serve=asked.ray_serve,
        logs=logs,
        environment=without_settings(),
    )
    return Report(
        created=now_rfc3339(),
        machine=this_machine(1),
        model=model.name,
        worker_flags=shlex.join(asked.worker_flags),
        parallel=asked.parallel,
        shape=asked.shape,
        seed=seed,
        played=[await _played(side, means, asked.shape, seed, loses_a_worker=asked.kill) for side in sides],
    )


async def _played(side: str, means: Means, shape: Shape, seed: int, *, loses_a_worker: bool) -> Played:
    """One fleet's conversations; a worker is killed after a third of the turns."""
    click.echo(f"==> {side}{', a worker is killed' if loses_a_worker else ''}", err=True)
    when = shape.n_conversations * shape.n_turns // 3
    async with fleet(side, means) as found:
        async with asyncio.TaskGroup() as tasks:

            def report(n_turns: int) -> None:
                if loses_a_worker and n_turns == when:
                    tasks.create_task(found.lose_a_worker())

            begun_s = time.perf_counter()
            turns = await converse(found.address, shape, seed, report)
            whole_s = time.perf_counter() - begun_s
        n_answered = sum(turn.is_answered for turn in turns)
        n_jobs = await asyncio.to_thread(found.n_jobs, n_answered)
    played = Played.of(side, turns, n_jobs, whole_s, lost_a_worker=loses_a_worker)
    click.echo("\t".join(played.cells), err=True)
    return played


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given."""

    model: str | None
    models_dir: Path
    catalog: Path | None
    vllm_router: Path | None
    ray_serve: Path | None
    sides: tuple[str, ...]
    conversations: int
    turns: int
    groups: int
    n_open: int
    think_s: float
    parallel: int
    worker_flags: list[str]
    kill: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sides. Raises: UsageError for one whose program was not named."""
        if not self.vllm_router and not self.ray_serve:
            raise UsageError("there is no fleet without a program: give --vllm-router, --ray-serve or both")
        there = [
            *([ROUND_ROBIN, CACHE_AWARE, KV_AWARE] if self.vllm_router else []),
            *([RAY] if self.ray_serve else []),
        ]
        for side in self.sides:
            if side not in there:
                raise UsageError(f"--side {side} needs {'--ray-serve' if side == RAY else '--vllm-router'}")
        return self.sides or tuple(there)

    @property
    def shape(self) -> Shape:
        return Shape(
            n_conversations=self.conversations,
            n_turns=self.turns,
            n_groups=self.groups,
            n_open=self.n_open,
            think_s=self.think_s,
        )
