"""The choice of a worker for a request: seven policies, each of which a router could run with its own data.

A policy sees the session, the prompt's tokens, and how many requests each worker has been sent that have not ended. One
of them also hears of every block that a worker keeps (KV events). Pure; chance is the seed's.
"""

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from math import ceil
from typing import Protocol

from tools.fleet_sim.workloads import Ask
from worker.wire.jobs import TokenId

BLOCK = 16
"""The number of tokens that are cached together, as in the KV events of common engines."""

MAX_SHARE, MIN_BOUND = 2, 4
"""A worker that is chosen for its cache has at most this many times the mean number of requests, or MIN_BOUND requests
where that is more (consistent hashing with bounded loads, Mirrokni et al. 2016). A popular beginning is then computed
on several workers; and under low load no request is sent away from its cached prefix."""

POINTS = 64
"""The number of places of each worker on the hash ring: with this number the shares differ by an eighth."""

InFlight = Sequence[int]
"""The number of unfinished requests by worker."""
Held = Callable[[int, Sequence[TokenId]], int]
"""(worker, prompt) → how many of the prompt's first tokens the worker need not compute."""


class Policy(Protocol):
    def choose(self, ask: Ask, in_flight: InFlight) -> int:
        """The worker that the request is sent to now."""
        ...


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: Ask, in_flight: InFlight) -> int:  # noqa: ARG002 - it looks at nothing
        chosen = self._next % len(in_flight)
        self._next += 1
        return chosen


class ByChance:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret

    def choose(self, ask: Ask, in_flight: InFlight) -> int:  # noqa: ARG002 - it looks at nothing
        return self._chance.randrange(len(in_flight))


class LeastLoaded:
    """The worker with the fewest requests in flight, of `n_looked_at` workers by chance or of all; of equals one by
    chance."""

    def __init__(self, seed: int, n_looked_at: int | None = None) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
        self._n_looked_at = n_looked_at

    def choose(self, ask: Ask, in_flight: InFlight) -> int:  # noqa: ARG002 - only loads count
        everyone = range(len(in_flight))
        if self._n_looked_at is None or self._n_looked_at >= len(in_flight):
            return self.of(everyone, in_flight)
        return self.of(self._chance.sample(everyone, self._n_looked_at), in_flight)

    def of(self, workers: Sequence[int], in_flight: InFlight) -> int:
        least = min(in_flight[worker] for worker in workers)
        return self._chance.choice([worker for worker in workers if in_flight[worker] == least])


class SessionHash:
    """All requests of a session to one worker, which stays the same for most of them when workers come and go."""

    def __init__(self, n_workers: int) -> None:
        self._ring = sorted((_hash(b"%d/%d" % (w, p)), w) for w in range(n_workers) for p in range(POINTS))
        self._places = [place for place, _ in self._ring]

    def choose(self, ask: Ask, in_flight: InFlight) -> int:  # noqa: ARG002 - loads do not count
        return self._ring[bisect(self._places, _hash(b"session %d" % ask.session)) % len(self._ring)][1]


class PrefixAffinity:
    """The worker that was sent most of the prompt's beginning before, as far as the bound on loads allows; of several
    the least loaded, and without any the least loaded of all.

    `known_tokens`: how much of what a worker was sent is taken to be still there, the rest having gone unused longest.
    """

    def __init__(self, n_workers: int, seed: int, known_tokens: int) -> None:
        self._least_loaded = LeastLoaded(seed)
        self._n_most = max(1, known_tokens // BLOCK)
        self._owners: dict[int, dict[int, None]] = {}
        """Workers by the key of a block."""
        self._blocks: list[dict[int, None]] = [{} for _ in range(n_workers)]
        """The blocks of each worker, least recently used first."""

    def choose(self, ask: Ask, in_flight: InFlight) -> int:
        keys = list(_keys(ask.prompt))
        chosen = self._best(ask, keys, in_flight)
        if chosen is None:
            chosen = self._least_loaded.choose(ask, in_flight)
        self._note(chosen, keys)
        return chosen

    def _best(self, ask: Ask, keys: Sequence[int], in_flight: InFlight) -> int | None:  # noqa: ARG002 - KvEvents asks
        n_most = _n_most(in_flight)
        for key in reversed(keys):
            if able := [worker for worker in self._owners.get(key, ()) if in_flight[worker] < n_most]:
                return self._least_loaded.of(able, in_flight)
        return None

    def _note(self, worker: int, keys: Sequence[int]) -> None:
        """The worker will have these blocks; their ends are forgotten before their beginnings."""
        blocks = self._blocks[worker]
        for key in reversed(keys):
            if key in blocks:
                del blocks[key]
            else:
                self._owners.setdefault(key, {})[worker] = None
            blocks[key] = None
        while len(blocks) > self._n_most:
            forgotten = next(iter(blocks))
            del blocks[forgotten]
            del self._owners[forgotten][worker]
            if not self._owners[forgotten]:
                del self._owners[forgotten]


class KvEvents(PrefixAffinity):
    """A policy like PrefixAffinity, but with the actual blocks of each worker, including answers: it hears of every
    stored or removed block without delay. Its own requests only say which workers to look at, because no other can have
    the blocks.
    """

    def __init__(self, n_workers: int, seed: int, held: Held) -> None:
        super().__init__(n_workers, seed, known_tokens=2**40)
        self._held = held

    def _best(self, ask: Ask, keys: Sequence[int], in_flight: InFlight) -> int | None:
        n_most = _n_most(in_flight)
        best: int | None = None
        n_best, seen = 0, set[int]()
        for place in reversed(range(len(keys))):
            new = [one for one in self._owners.get(keys[place], ()) if one not in seen and in_flight[one] < n_most]
            seen.update(new)
            for worker in sorted(new, key=in_flight.__getitem__):
                if n_best > place:
                    return best
                n_blocks = self._held(worker, ask.prompt) // BLOCK
                if n_blocks > n_best:
                    best, n_best = worker, n_blocks
        return best


POLICIES = ("round-robin", "random", "two-choices", "least-loaded", "session-hash", "prefix", "kv-events")


def policy_of(name: str, *, n_workers: int, seed: int, known_tokens: int, held: Held) -> Policy:
    """A fresh policy of a name in POLICIES."""
    made: dict[str, Callable[[], Policy]] = {
        "round-robin": RoundRobin,
        "random": lambda: ByChance(seed),
        "two-choices": lambda: LeastLoaded(seed, 2),
        "least-loaded": lambda: LeastLoaded(seed),
        "session-hash": lambda: SessionHash(n_workers),
        "prefix": lambda: PrefixAffinity(n_workers, seed, known_tokens),
        "kv-events": lambda: KvEvents(n_workers, seed, held),
    }
    return made[name]()


def _n_most(in_flight: InFlight) -> int:
    """The most requests that a worker may have, including the new one."""
    return max(MIN_BOUND, ceil(MAX_SHARE * (sum(in_flight) + 1) / len(in_flight)))


def _keys(prompt: Sequence[TokenId]) -> Iterator[int]:
    """A key for each whole block of the prompt, which stands for all tokens up to its end."""
    key = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        key = hash((key, tuple(prompt[end - BLOCK : end])))
        yield key


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest())
