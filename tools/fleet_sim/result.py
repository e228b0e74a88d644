"""The result of a run: the numbers of a table's line, from the times of all requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.answers import per_s, percentile
from tools.fleet_sim.fleet import Fleet
from tools.fleet_sim.sim_worker import Served

COLUMNS = (
    "policy",
    ">workers",
    ">requests/s",
    ">tokens/s",
    ">cached",
    ">first token",
    ">p90",
    ">p99",
    ">per token",
    ">busy",
    ">busiest / mean",
)
"""`first token`, `p90` and `p99` are of the time to the first token, `per token` is the median time of a token after
it, `busy` the share of the time in which workers compute, and `busiest / mean` how far the one that computed most is
above the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    policy: str
    n_workers: int
    n_requests: int
    requests_per_s: float
    tokens_per_s: float
    """The rate of the answers to these requests."""
    cached_share: float
    """Tokens of prompts that needed no computing."""
    first_token_s: float
    """The median."""
    first_token_p90_s: float
    first_token_p99_s: float
    token_s: float
    """The median request's time for a token after the first."""
    busy_share: float
    busiest_to_mean: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.policy,
            str(self.n_workers),
            f"{self.requests_per_s:.2f}",
            f"{self.tokens_per_s:.0f}",
            f"{self.cached_share:.1%}",
            *map(_time, (self.first_token_s, self.first_token_p90_s, self.first_token_p99_s, self.token_s)),
            f"{self.busy_share:.0%}",
            f"{self.busiest_to_mean:.2f}",
        )


def result_of(policy: str, fleet: Fleet) -> Result:
    """The result of the requests that were sent in the window."""
    begin_s, end_s = fleet.window_s
    inside = [one for one in fleet.served if begin_s <= one.sent_s <= end_s]
    return summary(policy, inside, fleet.busy_s, end_s - begin_s)


def summary(policy: str, served: Sequence[Served], busy_s: Sequence[float], whole_s: float) -> Result:
    """`busy_s`: of each worker, in the time `whole_s` in which the requests were sent."""
    first = [one.first_s - one.sent_s for one in served]
    after_first = [(one.ended_s - one.first_s) / (one.n_tokens - 1) for one in served if one.n_tokens > 1]
    return Result(
        policy=policy,
        n_workers=len(busy_s),
        n_requests=len(served),
        requests_per_s=per_s(len(served), whole_s),
        tokens_per_s=per_s(sum(one.n_tokens for one in served), whole_s),
        cached_share=sum(one.n_cached for one in served) / sum(len(one.ask.prompt) for one in served),
        first_token_s=percentile(first, 50),
        first_token_p90_s=percentile(first, 90),
        first_token_p99_s=percentile(first, 99),
        token_s=percentile(after_first, 50),
        busy_share=per_s(sum(busy_s), len(busy_s) * whole_s),
        busiest_to_mean=per_s(max(busy_s) * len(busy_s), sum(busy_s)),
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
