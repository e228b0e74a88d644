"""A full server: what is beyond its places is refused, each refusal is timed, and nothing else passes for one."""

import asyncio
import threading

import pytest

from tests.tools.bench.stand_in import StandIn, stand_in
from tools.bench.overload import N_PLACES, NotFull, Overload, overload
from tools.bench.prompts import Prompts


def measured(server: StandIn) -> Overload:
    return asyncio.run(overload(server.as_server(), Prompts(1), n_refusals=50))


@pytest.mark.long
def test_refusals_of_a_full_server_are_counted_and_timed() -> None:
    hold = threading.Event()
    with stand_in(n_places=N_PLACES, hold=hold) as server:
        threading.Thread(target=_let_the_burst_through, args=(server, hold), daemon=True).start()
        found = measured(server)
        hold.set()
    assert (found.n_burst, found.n_refusals) == (32, 50)
    assert (found.n_answered, found.n_refused, found.n_failed) == (N_PLACES, 32 - N_PLACES, 0)
    assert 0 < found.median_us <= found.p99_us
    assert found.first_us > 0
    assert found.last_us > 0
    assert found.front_us is None


def _let_the_burst_through(server: StandIn, hold: threading.Event) -> None:
    """The burst is held until all of it has been heard; what comes afterwards is held to the end."""
    pause = threading.Event()
    while len(server.heard.jobs) < 32:
        pause.wait(0.005)
    server.manner.hold = threading.Event()
    hold.set()


def test_a_server_that_does_not_refuse_cannot_be_measured() -> None:
    with (
        stand_in(status=418) as server,
        pytest.raises(NotFull, match="stand-in answered 418 to a long job"),
    ):
        measured(server)


def test_a_server_without_an_end_of_its_queue_cannot_be_measured() -> None:
    with stand_in() as server, pytest.raises(NotFull, match="stand-in answered 200 to job 1 beyond its queue"):
        measured(server)
