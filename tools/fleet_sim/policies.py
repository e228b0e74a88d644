"""The choice of a worker for a request: four policies, each of which a router could run with its own data.

A policy sees the session, the prompt's tokens, and how many requests each worker has been sent that have not ended.
Pure; chance is the seed's.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import count
from math import ceil

from tools.fleet_sim.workloads import Ask
from worker.wire.jobs import TokenId

BLOCK = 16
"""The number of tokens that are cached together, as in common engines."""

MAX_SHARE, MIN_BOUND = 2, 4
"""A worker that is chosen for its cache has at most this many times the mean number of requests, or MIN_BOUND requests
where that is more (consistent hashing with bounded loads, Mirrokni et al. 2016). A popular beginning is then computed
on several workers; and under low load no request is sent away from its cached prefix."""

InFlight = Sequence[int]
"""The number of unfinished requests by worker."""


Policy = Callable[[Ask, InFlight], int]
"""The worker that a request is sent to now."""


class LeastLoaded:
    """The worker with the fewest requests in flight; of equals one by chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret

    def __call__(self, ask: Ask, in_flight: InFlight) -> int:  # noqa: ARG002 - only loads count
        return self.of(range(len(in_flight)), in_flight)

    def of(self, workers: Sequence[int], in_flight: InFlight) -> int:
        least = min(in_flight[worker] for worker in workers)
        return self._chance.choice([worker for worker in workers if in_flight[worker] == least])


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

    def __call__(self, ask: Ask, in_flight: InFlight) -> int:
        keys = list(_keys(ask.prompt))
        chosen = self._best(keys, in_flight)
        if chosen is None:
            chosen = self._least_loaded(ask, in_flight)
        self._note(chosen, keys)
        return chosen

    def _best(self, keys: Sequence[int], in_flight: InFlight) -> int | None:
        n_most = max(MIN_BOUND, ceil(MAX_SHARE * (sum(in_flight) + 1) / len(in_flight)))
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


POLICIES = ("round-robin", "least-loaded", "session-hash", "prefix")


def policy_of(name: str, *, n_workers: int, seed: int, known_tokens: int) -> Policy:
    """A fresh policy of a name in POLICIES."""
    turns = count()
    made: dict[str, Callable[[], Policy]] = {
        "round-robin": lambda: lambda _, in_flight: next(turns) % len(in_flight),
        "least-loaded": lambda: LeastLoaded(seed),
        "session-hash": lambda: _session_hash,
        "prefix": lambda: PrefixAffinity(n_workers, seed, known_tokens),
    }
    return made[name]()


def _session_hash(ask: Ask, in_flight: InFlight) -> int:
    """All requests of a session to one worker. No worker comes or goes here, so a ring would choose no better."""
    return int.from_bytes(blake2b(b"session %d" % ask.session, digest_size=8).digest()) % len(in_flight)


def _keys(prompt: Sequence[TokenId]) -> Iterator[int]:
    """A key for each whole block of the prompt, which stands for all tokens up to its end."""
    key = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        key = hash((key, tuple(prompt[end - BLOCK : end])))
        yield key
