"""The sides of a scenario, round by round: a server under load, or llama.cpp's own tool. Runs on the load's event loop.

Requests go over one connection each; nothing is parsed while one is under way.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from tools.bench.dialects import Dialect, answer_of
from tools.bench.exchange import Address, Connection, Exchange, connect
from tools.bench.measures import Answer, Ask, Bound, Measure, per_s
from tools.bench.processes import cpu_s
from tools.bench.scenarios import LLAMA_BENCH, Role, Scenario

_QUIET_S, _GIVE_UP_S = 0.1, 10.0
_QUIET_CPU_S = 0.02
"""The clock of /proc ticks every 10 ms."""
_N_PROMPT = 85
"""The tokens of 64 words."""
_TOOL_S = 600.0


Part = Literal["ours", "ours without drafts"] | Role
"""The part of a side in a run: our worker with or without its drafts, or a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One side's part of one round."""

    numbers: Mapping[str, float]
    """The numbers by measure; empty if anything failed."""
    n_asked: int
    n_failed: int = 0
    error: str = ""
    """The first one."""
    per_cpu_s: float = 0.0
    """Tokens of prompts and answers by the processor time of all its processes, until they rest again; 0 where it
    is unknown."""


class Side(Protocol):
    """A measured program."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    @property
    def pids(self) -> Sequence[int]:
        """The processes that must be idle while another side is measured."""

    def plays(self, scenario: Scenario) -> bool: ...

    def bound(self, measure: Measure) -> Bound | None:
        """The bound of our worker against this side."""

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        """Its part of a round. Raises: NotReached if the server is gone."""


@dataclass(frozen=True, slots=True)
class ServedSide:
    """A server that takes requests, under load."""

    name: str
    part: Part
    address: Address
    dialect: Dialect
    version: str = ""
    """The version of llama.cpp that a llama-server reports."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """Its processes by their kind; none if it was not started here."""

    @property
    def pids(self) -> Sequence[int]:
        return tuple(self.processes.values())

    def plays(self, scenario: Scenario) -> bool:
        return plays(self.part, scenario)

    def bound(self, measure: Measure) -> Bound | None:
        return {"judged": measure.bound, "speculating": measure.speculating_bound}.get(self.part)

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        before_s = cpu_s(self.pids)
        answers = await play(self, asks)
        await until_quiet(self.pids)
        spent_s = cpu_s(self.pids) - before_s
        errors = [error for answer, ask in zip(answers, asks, strict=True) if (error := _wrong(answer, ask))]
        if errors:
            return Turn(numbers={}, n_asked=len(asks), n_failed=len(errors), error=errors[0])
        return Turn(
            numbers={measure.name: measure.of(answers) for measure in scenario.measures},
            n_asked=len(asks),
            per_cpu_s=per_s(sum(answer.n_prompt + answer.n_tokens for answer in answers), spent_s),
        )


def plays(part: Part, scenario: Scenario) -> bool:
    """True if a side of that part runs the scenario."""
    match part:
        case "ours":
            return scenario.has_drafts
        case "ours without drafts":
            return not scenario.has_drafts
        case _:
            return part in scenario.peers


def _wrong(answer: Answer, ask: Ask) -> str:
    if not answer.error and answer.n_tokens != ask.n_tokens:
        return f"{answer.n_tokens} tokens came instead of {ask.n_tokens}"
    return answer.error


class Rate(msgspec.Struct, frozen=True):
    """A line of llama-bench's JSON: tokens/s, and the tokens of the prompt."""

    avg_ts: float
    n_prompt: int = 0


class _Batched(msgspec.Struct, frozen=True):
    """A line of llama-batched-bench: tokens of each stream, streams, seconds with the prompts'."""

    tg: int
    pl: int
    t: float


@dataclass(frozen=True, slots=True)
class Tool:
    """`llama-bench` or `llama-batched-bench`: as many tokens of one stream at the same depth, or of several with
    prompts as long, without HTTP, sampling and arrivals.

    Source: llama.cpp, tools/llama-bench/README.md and tools/batched-bench/README.md.
    """

    name: str
    binary: Path
    model: Path
    n_cells: int
    n_threads: int
    pids: Sequence[int] = ()
    part: Part = "beside"

    def plays(self, scenario: Scenario) -> bool:
        return scenario.tool == self.name

    def bound(self, measure: Measure) -> Bound | None:  # noqa: ARG002 - a side's
        return None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        n_tokens, n_asks, n_prompt = str(asks[0].n_tokens), str(len(asks)), str(_N_PROMPT)
        if self.name == LLAMA_BENCH:
            task = ["-p", "0", "-d", n_prompt, "-n", n_tokens, "-r", n_asks, "-o", "jsonl"]
        else:
            task = ["-npp", n_prompt, "-ntg", n_tokens, "-npl", n_asks, "-kvu", "-c", str(self.n_cells)]
            task += ["--output-format", "jsonl"]
        process = await asyncio.create_subprocess_exec(
            *(str(self.binary), "-m", str(self.model), "-t", str(self.n_threads), *task),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _TOOL_S)
        lines = [line for line in output.splitlines() if line.startswith(b"{")]
        if process.returncode or not lines:
            error = f"{self.name} ended with {process.returncode} and {len(lines)} lines of numbers"
            return Turn(numbers={}, n_asked=1, n_failed=1, error=error)
        if self.name == LLAMA_BENCH:
            rate = msgspec.json.decode(lines[-1], type=Rate).avg_ts
        else:
            batched = msgspec.json.decode(lines[-1], type=_Batched)
            rate = per_s(batched.tg * batched.pl, batched.t)
        return Turn(numbers={scenario.own[0].name: rate}, n_asked=1)


async def play(server: ServedSide, asks: Sequence[Ask]) -> list[Answer]:
    """The answers, in the order of `asks`, which are sorted by phase. Raises: NotReached."""
    exchanges: list[Exchange] = []
    for _, phase in groupby(asks, key=lambda ask: ask.phase):
        exchanges += await _play_phase(server, list(phase))
    return [answer_of(exchange, server.dialect) for exchange in exchanges]


async def _play_phase(server: ServedSide, asks: Sequence[Ask]) -> list[Exchange]:
    """The connections of what is sent at once are open, and all bodies are made, before the first request is sent."""
    bodies = [server.dialect.body(ask) for ask in asks]
    async with AsyncExitStack() as stack:
        early = {number: await _open(server, stack) for number, ask in enumerate(asks) if not ask.is_late}
        sent = [
            early[number].ask("POST", server.dialect.path, body)
            if number in early
            else _send_late(server, body, list(early.values()), stack)
            for number, body in enumerate(bodies)
        ]
        return await asyncio.gather(*sent)


async def _send_late(server: ServedSide, body: bytes, early: Sequence[Connection], stack: AsyncExitStack) -> Exchange:
    """Send the request when the early ones are going, on a new connection, because servers close idle ones."""
    await asyncio.gather(*(connection.is_going.wait() for connection in early))
    return await (await _open(server, stack)).ask("POST", server.dialect.path, body)


async def _open(server: ServedSide, stack: AsyncExitStack) -> Connection:
    connection = await connect(server.address)
    stack.callback(connection.close)
    return connection


async def until_quiet(pids: Sequence[int]) -> None:
    """Wait until the processes have stopped computing, at most ten seconds: then one of them never rests."""
    if not pids:
        return
    give_up_s = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < give_up_s:
        before_s = cpu_s(pids)
        await asyncio.sleep(_QUIET_S)
        if cpu_s(pids) - before_s < _QUIET_CPU_S:
            return
