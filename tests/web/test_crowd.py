"""The choice of the connection to close when there are too many (docs/protocol.md#http). Pure: no socket, no clock."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.web.crowd import MAX_CONNECTIONS, RESERVED_CONNECTIONS, Crowd, Standing, affordable_connections

MAX = RESERVED_CONNECTIONS + 4


@dataclass(eq=False)
class Caller:
    address: str | None = "192.0.2.1"
    is_dropped: bool = field(default=False)

    def drop(self) -> None:
        self.is_dropped = True


def joined(crowd: Crowd, standing: Standing, n: int = 1, address: str | None = "192.0.2.1") -> list[Caller]:
    callers = [Caller(address) for _ in range(n)]
    for caller in callers:
        crowd.join(caller)
        crowd.stand(caller, standing)
    return callers


moves = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*Standing, "join", "leave"])), max_size=200)


@pytest.mark.long
@given(moves)
def test_there_are_never_too_many_and_served_connections_stay(moves: list[tuple[int, Standing | str]]) -> None:
    """Only a newcomer that finds all others served is turned away, whatever comes, moves and goes."""
    crowd = Crowd(MAX)
    callers: list[Caller] = []
    served: set[Caller] = set()
    for number, move in moves:
        if move == "join":
            callers.append(Caller())
            crowd.join(callers[-1])
        elif callers:
            caller = callers[number % len(callers)]
            served.discard(caller)
            if isinstance(move, Standing):
                crowd.stand(caller, move)
                if move is Standing.SERVED and not caller.is_dropped:
                    served.add(caller)
            else:
                crowd.leave(caller)
                callers.remove(caller)
        assert crowd.n_members == sum(not caller.is_dropped for caller in callers) <= MAX
        assert not any(caller.is_dropped for caller in served)


def test_the_oldest_silent_connection_is_closed_first() -> None:
    crowd = Crowd(MAX)
    reading, sending = joined(crowd, Standing.NOT_READING) + joined(crowd, Standing.SENDING)
    silent = joined(crowd, Standing.SILENT, 2)
    served = joined(crowd, Standing.SERVED, MAX - 4)
    for expected in (*silent, sending, reading):
        assert not expected.is_dropped
        served += joined(crowd, Standing.SERVED)
        assert expected.is_dropped
    (turned_away,) = joined(crowd, Standing.SERVED)
    assert turned_away.is_dropped
    assert not any(caller.is_dropped for caller in served)


def test_a_connections_age_counts_from_its_last_answer_not_from_a_byte_it_sends() -> None:
    crowd = Crowd(MAX)
    first, second, third = joined(crowd, Standing.SILENT, 3)
    crowd.stand(first, Standing.SILENT)  # a byte of a header
    crowd.stand(second, Standing.SERVED)
    crowd.stand(second, Standing.SILENT)  # answered
    joined(crowd, Standing.SERVED, MAX - 3)
    for expected in (first, third, second):
        assert not expected.is_dropped
        joined(crowd, Standing.SERVED)
        assert expected.is_dropped


def test_jobs_may_hold_all_connections_except_sixteen() -> None:
    """A connection without a whole request does not count."""
    crowd = Crowd(MAX)
    joined(crowd, Standing.SERVED, 3)
    joined(crowd, Standing.SENDING, 5)
    joined(crowd, Standing.SILENT, 5)
    (last,) = joined(crowd, Standing.NOT_READING)
    assert not crowd.is_full
    (surplus,) = joined(crowd, Standing.SERVED)
    assert crowd.is_full
    crowd.stand(surplus, Standing.SILENT)
    assert not crowd.is_full
    assert not last.is_dropped


def test_an_address_has_its_limit_of_requests_and_one_more_connection() -> None:
    """The one more may turn out to ask for health."""
    crowd = Crowd(MAX, max_per_address=2)
    others = joined(crowd, Standing.SILENT, 2, "192.0.2.2")
    working = joined(crowd, Standing.SERVED) + joined(crowd, Standing.SENDING)
    assert not any(map(crowd.is_over_limit, working))
    one, two = joined(crowd, Standing.SILENT, 2)
    assert (one.is_dropped, two.is_dropped) == (True, False)
    assert not crowd.is_over_limit(working[0])
    crowd.stand(two, Standing.SENDING)
    assert crowd.is_over_limit(two)
    assert not any(caller.is_dropped for caller in [*working, *others])
    assert not any(map(crowd.is_over_limit, others))


def test_clients_without_an_address_are_not_counted_together() -> None:
    crowd = Crowd(MAX, max_per_address=1)
    callers = joined(crowd, Standing.SILENT, 5, None) + joined(crowd, Standing.SERVED, 5, None)
    assert not any(caller.is_dropped or crowd.is_over_limit(caller) for caller in callers)


@pytest.mark.parametrize(
    ("n_open_files", "n_connections"),
    [(-1, MAX_CONNECTIONS), (4096, MAX_CONNECTIONS), (1024, 960), (64, RESERVED_CONNECTIONS + 1)],
)
def test_connections_leave_descriptors_for_other_files(n_open_files: int, n_connections: int) -> None:
    assert affordable_connections(n_open_files) == n_connections
