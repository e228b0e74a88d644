"""A fleet under a load: the events of all its workers and sessions in the order of time. No clock but its own.

    session ──request──▶ router: a policy chooses ──▶ worker: its inbox, then step after step ──▶ session: the next one

Pure: the same costs, sessions and seed give the same result.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from tools.bench.measures import per_s, percentile
from tools.fleet_sim.policies import Policy, policy_of
from tools.fleet_sim.sim_worker import Served, SimWorker, StepCosts
from tools.fleet_sim.workloads import Ask, Session
from worker.errors import UsageError

Asks = Iterator[tuple[float, Ask]]

COLUMNS = (
    *("policy", ">workers", ">requests/s", ">tokens/s", ">cached", ">first token", ">p90", ">p99", ">per token"),
    *(">busy", ">busiest / mean"),
)


class Fleet:
    """`costs`: of each worker. `served`: every request, in the order in which they were sent."""

    def __init__(self, costs: Sequence[StepCosts], policy: str, *, seed: int) -> None:
        n_workers = len(costs)
        self.policy_name = policy
        self.workers = [SimWorker(each) for each in costs]
        self.served: list[Served] = []
        self.window_s = (0.0, 0.0)
        """The later half of the time in which sessions begin: those before have filled the caches."""
        self.busy_s = [0.0] * n_workers
        """The busy time of each worker, in steps that began in the window."""
        self._context_length = min(each.context_length for each in costs)
        self._in_flight = [0] * n_workers
        self._policy: Policy = policy_of(
            policy,
            n_workers=n_workers,
            seed=seed,
            known_tokens=min(each.prefix_cache_tokens for each in costs),
        )
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._rest: dict[int, Asks] = {}
        """The remaining requests by session."""

    def run(self, sessions: Sequence[Session]) -> None:
        """Play the sessions to their ends. Raises: UsageError for one that is longer than a worker's context."""
        for session in sessions:
            if session.n_longest > self._context_length:
                raise UsageError(
                    f"a session grows to {session.n_longest} tokens; the context of a worker with these costs has "
                    f"{self._context_length}"
                )
            self._rest[session.number] = iter(session.asks)
            self._go_on(session.number, session.begins_s)
        last_s = max(session.begins_s for session in sessions)
        self.window_s = (last_s / 2, last_s)
        while self._events:
            at_s, _, happen = heappop(self._events)
            happen(at_s)

    def _at(self, at_s: float, happen: Callable[[float], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), happen))

    def _go_on(self, session: int, now_s: float) -> None:
        """The session's next request is sent after its pause."""
        if (following := next(self._rest[session], None)) is not None:
            pause_s, ask = following
            self._at(now_s + pause_s, lambda at_s: self._send(ask, at_s))

    def _send(self, ask: Ask, now_s: float) -> None:
        chosen = self._policy(ask, self._in_flight)
        self._in_flight[chosen] += 1
        served = Served(ask, chosen, now_s)
        self.served.append(served)
        worker, arrives_s = self.workers[chosen], now_s + self.workers[chosen].costs.request_ms / 1000
        worker.inbox.append((arrives_s, served))
        if not worker.is_awake:
            worker.is_awake = True
            self._at(arrives_s, lambda at_s: self._step(chosen, at_s))

    def _step(self, number: int, now_s: float) -> None:
        worker = self.workers[number]
        for served in worker.step(now_s):
            self._at(served.ended_s, lambda at_s, served=served: self._end(served, at_s))  # type: ignore[misc]
        next_s = worker.clock.now_s
        if self.window_s[0] <= now_s <= self.window_s[1]:
            self.busy_s[number] += next_s - now_s
        if worker.engine.is_idle:
            worker.is_awake = bool(worker.inbox)
            next_s = max(next_s, worker.inbox[0][0]) if worker.inbox else next_s
        if worker.is_awake:
            self._at(next_s, lambda at_s: self._step(number, at_s))

    def _end(self, served: Served, now_s: float) -> None:
        self._in_flight[served.worker] -= 1
        self._go_on(served.ask.session, now_s)

    def cached_share(self) -> float:
        """The share of the prompts' tokens that needed no computing, of the requests sent in the window."""
        counted = self._counted()
        return sum(one.n_cached for one in counted) / sum(len(one.ask.prompt) for one in counted)

    def result(self) -> tuple[str, ...]:
        """A line of the table, from the times of the requests that were sent in the window."""
        counted, whole_s = self._counted(), self.window_s[1] - self.window_s[0]
        first = [one.first_s - one.sent_s for one in counted]
        after_first = [(one.ended_s - one.first_s) / (one.n_tokens - 1) for one in counted if one.n_tokens > 1]
        times_s = (*(percentile(first, share) for share in (50, 90, 99)), percentile(after_first, 50))
        n_workers, busy_s = len(self.workers), sum(self.busy_s)
        return (
            self.policy_name,
            str(n_workers),
            f"{per_s(len(counted), whole_s):.2f}",
            f"{per_s(sum(one.n_tokens for one in counted), whole_s):.0f}",
            f"{self.cached_share():.1%}",
            *(f"{time_s:.2f} s" if time_s >= 1 else f"{1000 * time_s:.0f} ms" for time_s in times_s),
            f"{per_s(busy_s, n_workers * whole_s):.0%}",
            f"{per_s(max(self.busy_s) * n_workers, busy_s):.2f}",
        )

    def _counted(self) -> list[Served]:
        begin_s, end_s = self.window_s
        return [one for one in self.served if begin_s <= one.sent_s <= end_s]
