"""What a scenario is run on, round by round: a server, or llama.cpp's own tool beside it.

Owns: one side's part of one round. Refuses to know the order of sides and rounds (session.py).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from tools.bench.answers import Answer, Ask
from tools.bench.load import Server, play
from tools.bench.measures import Bound, Measure, at_least, numbers_of
from tools.bench.processes import cpu_s
from tools.bench.scenarios import N_PROMPT_TOKENS, ONE_STREAM, PROMPT, Scenario

_QUIET_S, _GIVE_UP_S = 0.1, 10.0
_QUIET_CPU_S = 0.02
"""The clock of /proc ticks every 10 ms."""
LLAMA_BENCH = "llama-bench"
_LLAMA_BENCH_S = 600.0
_LLAMA_BENCH_BOUND = at_least(0.97)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One side's part of one round."""

    numbers: Mapping[str, float]
    """By measure; empty where anything failed."""
    n_asked: int
    n_failed: int = 0
    error: str = ""
    """The first one."""


class Side(Protocol):
    """What is measured."""

    @property
    def name(self) -> str: ...

    @property
    def pids(self) -> Sequence[int]:
        """Those that must be quiet while another side is measured."""

    def plays(self, scenario: Scenario) -> bool: ...

    def bound(self, measure: Measure) -> Bound | None:
        """What ours must keep beside it."""

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        """Its part of a round. Raises: NotReached where there is nobody any more."""


@dataclass(frozen=True, slots=True)
class ServedSide:
    """A server under load."""

    server: Server
    is_ours: bool
    is_speculating: bool = False
    """A peer that runs only what its speculation is for, and has bounds of its own."""

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def pids(self) -> Sequence[int]:
        return tuple(self.server.pids.values())

    def plays(self, scenario: Scenario) -> bool:
        return self.is_ours or (scenario.has_peers and (scenario.is_lookup or not self.is_speculating))

    def bound(self, measure: Measure) -> Bound | None:
        return measure.speculating_bound if self.is_speculating else measure.bound

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        answers = await play(self.server, asks)
        errors = [error for answer, ask in zip(answers, asks, strict=True) if (error := _wrong(answer, ask))]
        if errors:
            return Turn(numbers={}, n_asked=len(asks), n_failed=len(errors), error=errors[0])
        return Turn(numbers=numbers_of(scenario.measures, answers), n_asked=len(asks))


def _wrong(answer: Answer, ask: Ask) -> str:
    if not answer.error and answer.n_tokens != ask.n_tokens:
        return f"{answer.n_tokens} tokens came instead of {ask.n_tokens}"
    return answer.error


class _Rate(msgspec.Struct, frozen=True):
    avg_ts: float


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

    def plays(self, scenario: Scenario) -> bool:
        return scenario.name in (ONE_STREAM, PROMPT)

    def bound(self, measure: Measure) -> Bound | None:
        return _LLAMA_BENCH_BOUND if measure.bound else None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        if scenario.name == PROMPT:
            task = ["-p", str(N_PROMPT_TOKENS), "-n", "0"]
        else:
            task = ["-p", "0", "-d", "85", "-n", str(asks[0].n_tokens)]
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
        (rate,) = msgspec.json.decode(output, type=list[_Rate])
        return Turn(numbers={scenario.own[0].name: rate.avg_ts}, n_asked=1)


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
