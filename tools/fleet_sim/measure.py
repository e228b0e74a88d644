"""The costs of the steps of a running worker, measured through its API: each cost is a difference of two waits.

What is measured is what clients wait for, so that the engine's and the front's own work is part of it. The worker must
make no drafts (`--prompt-lookup off`), keep prefixes, and have nothing else to do. Runs on the check's event loop.
"""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from tools.bench.exchange import Address, ask_once
from tools.bench.prompts import common_words
from tools.fleet_sim.client import NoAnswer, Timed, ask_worker
from tools.fleet_sim.costs import RowsMs, StepCosts
from tools.fleet_sim.workloads import Ask
from worker.config.settings import Settings
from worker.engine.prefill_budget import MIN_CHUNK, widest_step_of
from worker.plan.memory import DEFAULT_UBATCH
from worker.wire.jobs import TokenId

N_DEEP = 512
"""The tokens of a prompt after which costs are measured again, and which is copied out and in."""
_N_DECODED = 24

Waits = Mapping[tuple[str, int], float]
"""One round's milliseconds, by what was measured and its number of rows."""


class _PrefixCache(msgspec.Struct, frozen=True):
    tokens: int
    bytes: int
    limit_bytes: int


class _Health(msgspec.Struct, frozen=True):
    """The fields of /health that are looked at."""

    model: str
    slots_total: int
    context_length: int
    prefill_chunk: int
    prefix_cache: _PrefixCache


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Probe:
    """One worker, and the words that it is asked with; `chance` makes all its prompts new."""

    address: Address
    vocabulary: Sequence[TokenId]
    chance: random.Random

    @classmethod
    async def of(cls, address: Address, seed: int) -> "Probe":
        """Raises: NotReached, NoAnswer."""
        chance = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
        return cls(address, await vocabulary_of(address), chance)

    async def waits(self) -> Waits:
        """One round: first the steps alone, then those after a long prompt, which is copied out and in meanwhile.
        Raises: NotReached, NoAnswer.
        """
        health = await _health(self.address)
        if health.slots_total < 2:
            raise NoAnswer(f"{self.address} has one slot: start it with --parallel 2 or more to measure it")
        found = {("decode", rows): await self._step_ms(rows) for rows in _widths(1, health.slots_total)}
        step_ms = found["decode", 1]
        request_ms = max(0.0, 1000 * (await self._timed(self._new(1), 2)).first_token_s - step_ms)
        found["request", 1] = request_ms
        widest = widest_step_of(health.prefill_chunk, DEFAULT_UBATCH, can_abort=False)
        for rows in _widths(MIN_CHUNK, widest):
            wait_ms = 1000 * (await self._timed(self._new(rows), 2)).first_token_s
            # No step is shorter than one of a single row: a difference below it is noise.
            found["prefill", rows] = max(step_ms, wait_ms - request_ms)
        deep = self._new(N_DEEP)
        await self._timed(deep, 4)
        beside = await self._timed(self._new(MIN_CHUNK), 4)
        # A part of the copy is made after each of these tokens.
        found["save", 1] = (
            1000 * (beside.arrivals_s[-1] - beside.arrivals_s[0]) - (len(beside.arrivals_s) - 1) * step_ms
        )
        again = await self._timed(deep, _N_DECODED)
        found["load", 1] = 1000 * again.first_token_s - request_ms - step_ms
        found["deep decode", 1] = _mean_ms(again.arrivals_s[2:]) - step_ms
        longer = await self._timed([*deep, *self._new(widest)], 2)
        found["deep prefill", widest] = 1000 * longer.first_token_s - request_ms - found["prefill", widest]
        found["beside", 1] = await self._beside_ms(deep) - found["decode", 2] - found["deep decode", 1]
        return found

    async def _step_ms(self, n_rows: int) -> float:
        """The time of a decode step while all streams generate."""
        return _step_ms(await asyncio.gather(*(self._timed(self._new(8), _N_DECODED + n_rows) for _ in range(n_rows))))

    async def _beside_ms(self, deep: Sequence[TokenId]) -> float:
        """The time of a decode step of a long prompt and a short one, which has to skip the other's cells."""
        return _step_ms(
            await asyncio.gather(self._timed(deep, 2 * _N_DECODED), self._timed(self._new(8), 2 * _N_DECODED))
        )

    def _new(self, n_tokens: int) -> list[TokenId]:
        return self.chance.choices(self.vocabulary, k=n_tokens)

    async def _timed(self, prompt: Sequence[TokenId], n_tokens: int) -> Timed:
        return await ask_worker(self.address, Ask(0, prompt, self.chance.choice(self.vocabulary), n_tokens))


async def vocabulary_of(address: Address) -> list[TokenId]:
    """Tokens whose texts are whole words, so that each of an answer is sent at once. Raises: NotReached, NoAnswer."""
    body = msgspec.json.encode({"content": " ".join(common_words())})
    exchange = await ask_once(address, "POST", "/tokenize", body)
    try:
        found = msgspec.json.decode(exchange.body, type=_Tokens).tokens
    except msgspec.DecodeError:
        raise NoAnswer(f"{address}/tokenize answered {exchange.status}, not tokens") from None
    return sorted(TokenId(token) for token in set(found))


async def costs_of(address: Address, waits: Sequence[Waits]) -> StepCosts:
    """The medians of all rounds, and the sizes that the worker reports. Raises: NotReached, NoAnswer."""
    health = await _health(address)
    cache = health.prefix_cache
    metrics = (await ask_once(address, "GET", "/metrics")).body.decode()
    cells = re.search(r"^worker_kv_cells_total\S* (\S+)", metrics, re.MULTILINE)
    if cells is None:
        raise NoAnswer(f"{address}/metrics has no worker_kv_cells_total")
    gathered: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for each in waits:
        for what, ms in each.items():
            gathered[what].append(ms)
    medians = {what: median(ms) for what, ms in gathered.items()}
    decode, prefill = _by_rows(medians, "decode"), _by_rows(medians, "prefill")
    widest = prefill[-1][0]
    return StepCosts(
        measured_on=f"{health.model} at {address}",
        parallel=health.slots_total,
        cells=round(float(cells[1])),
        context_length=health.context_length,
        chunk=health.prefill_chunk,
        widest_step=widest,
        itl_target_ms=Settings().itl_target_ms,
        prefix_cache_tokens=cache.limit_bytes * cache.tokens // cache.bytes if cache.bytes else 0,
        decode_ms=decode,
        prefill_ms=((1, decode[0][1]), *prefill),
        decode_ms_per_1000_cells=_positive(medians["deep decode", 1] * 1000 / N_DEEP),
        prefill_ms_per_1000_cells=_positive(medians["deep prefill", widest] * 1000 / N_DEEP / widest),
        others_ms_per_1000_cells=_positive(medians["beside", 1] * 1000 / N_DEEP),
        save_ms_per_1000=_positive(medians["save", 1] * 1000 / N_DEEP),
        load_ms_per_1000=_positive(medians["load", 1] * 1000 / N_DEEP),
        request_ms=medians["request", 1],
    )


async def _health(address: Address) -> _Health:
    exchange = await ask_once(address, "GET", "/health")
    try:
        return msgspec.json.decode(exchange.body, type=_Health)
    except msgspec.DecodeError:
        raise NoAnswer(f"{address}/health answered {exchange.status}, not as a worker that is ready") from None


def _widths(least: int, most: int) -> list[int]:
    """Powers of two and the last."""
    doubled = [least << place for place in range(most.bit_length()) if least << place < most]
    return [*doubled, most]


def _step_ms(timed: Sequence[Timed]) -> float:
    """The time of a step while all of these generate."""
    begin_s = max(each.arrivals_s[0] for each in timed)
    end_s = min(each.arrivals_s[-1] for each in timed)
    return median(_mean_ms([at_s for at_s in each.arrivals_s if begin_s <= at_s <= end_s]) for each in timed)


def _mean_ms(arrivals_s: Sequence[float]) -> float:
    return 1000 * (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1)


def _by_rows(medians: Mapping[tuple[str, int], float], wanted: str) -> RowsMs:
    return tuple(sorted((rows, round(ms, 3)) for (what, rows), ms in medians.items() if what == wanted))


def _positive(ms: float) -> float:
    """The cost, at least 0: a negative result is noise."""
    return max(0.0, round(ms, 4))
