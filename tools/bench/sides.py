"""The sides of a scenario, round by round: a server, or llama.cpp's own tool."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from tools.bench.answers import Answer, Ask, per_s
from tools.bench.load import Server, play
from tools.bench.measures import Bound, Measure, numbers_of
from tools.bench.processes import cpu_s
from tools.bench.scenarios import Role, Scenario

_QUIET_S, _GIVE_UP_S = 0.1, 10.0
_QUIET_CPU_S = 0.02
"""The clock of /proc ticks every 10 ms."""
LLAMA_BENCH, LLAMA_BATCHED_BENCH = "llama-bench", "llama-batched-bench"
_N_PROMPT = 85
"""The tokens of 64 words."""
_LLAMA_BENCH_S = 600.0

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
    """The requests; empty if anything failed."""


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
    """A server under load."""

    server: Server
    part: Part

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def pids(self) -> Sequence[int]:
        return tuple(self.server.pids.values())

    def plays(self, scenario: Scenario) -> bool:
        return plays(self.part, scenario)

    def bound(self, measure: Measure) -> Bound | None:
        return {"judged": measure.bound, "speculating": measure.speculating_bound}.get(self.part)

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        before_s = cpu_s(self.pids)
        answers = await play(self.server, asks)
        await until_quiet(self.pids)
        spent_s = cpu_s(self.pids) - before_s
        errors = [error for answer, ask in zip(answers, asks, strict=True) if (error := _wrong(answer, ask))]
        if errors:
            return Turn(numbers={}, n_asked=len(asks), n_failed=len(errors), error=errors[0])
        return Turn(
            numbers=numbers_of(scenario.measures, answers),
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
class LlamaBench:
    """`llama-bench`: as many tokens at the same depth as a lone stream, or a prompt, without HTTP and sampling.

    Source: llama.cpp, tools/llama-bench/README.md.
    """

    binary: Path
    model: Path
    n_threads: int
    pids: Sequence[int] = ()
    name: str = LLAMA_BENCH
    part: Part = "beside"

    def plays(self, scenario: Scenario) -> bool:
        return scenario.has_llama_bench

    def bound(self, measure: Measure) -> Bound | None:  # noqa: ARG002 - a side's
        return None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        task = ["-p", "0", "-d", str(_N_PROMPT), "-n", str(asks[0].n_tokens)]
        process = await asyncio.create_subprocess_exec(
            *(str(self.binary), "-m", str(self.model), *task),
            *("-t", str(self.n_threads), "-r", str(len(asks)), "-o", "json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _LLAMA_BENCH_S)
        if process.returncode:
            error = f"llama-bench ended with {process.returncode}"
            return Turn(numbers={}, n_asked=1, n_failed=1, error=error)
        (rate,) = msgspec.json.decode(output, type=list[Rate])
        return Turn(numbers={scenario.own[0].name: rate.avg_ts}, n_asked=1)


@dataclass(frozen=True, slots=True)
class LlamaBatchedBench:
    """`llama-batched-bench`: as many streams at once with prompts as long, without HTTP, sampling and arrivals.

    Source: llama.cpp, tools/batched-bench/README.md.
    """

    binary: Path
    model: Path
    n_cells: int
    n_threads: int
    pids: Sequence[int] = ()
    name: str = LLAMA_BATCHED_BENCH
    part: Part = "beside"

    def plays(self, scenario: Scenario) -> bool:
        return scenario.has_batched_bench

    def bound(self, measure: Measure) -> Bound | None:  # noqa: ARG002 - a side's
        return None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        task = ["-npp", str(_N_PROMPT), "-ntg", str(asks[0].n_tokens), "-npl", str(len(asks)), "-kvu"]
        process = await asyncio.create_subprocess_exec(
            *(str(self.binary), "-m", str(self.model), *task, "-c", str(self.n_cells)),
            *("-t", str(self.n_threads), "--output-format", "jsonl"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _LLAMA_BENCH_S)
        lines = [line for line in output.splitlines() if line.startswith(b"{")]
        if process.returncode or not lines:
            error = f"llama-batched-bench ended with {process.returncode} and {len(lines)} lines of numbers"
            return Turn(numbers={}, n_asked=1, n_failed=1, error=error)
        found = msgspec.json.decode(lines[-1], type=_Batched)
        return Turn(numbers={scenario.own[0].name: per_s(found.tg * found.pl, found.t)}, n_asked=1)


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
