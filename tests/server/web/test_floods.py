"""A flood of connections keeps nobody out, and leaves nothing behind."""

import pytest

from tests.server.web.flood import ALWAYS_ANSWERED, N_CONNECTIONS, Watch, apart, besiege
from tests.worker_process import WorkerProcess, eventually, serving_toy

pytestmark = pytest.mark.process

SHARE = 1.02
"""The memory and descriptors after a flood, compared with those after an earlier one or before it."""
N_FIRST = 4
"""The floods after which the allocator holds what it keeps for the next one."""
MOST_FIRST_BYTES = 32e6
"""The most that they add."""

besieged = serving_toy(scope="function")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n_floods", [1, pytest.param(12, marks=pytest.mark.soak)])
def test_ten_thousand_connections_keep_health_cancel_and_metrics_answered_and_leave_nothing(
    besieged: WorkerProcess, n_floods: int
) -> None:
    """Silent, half said, unread, in tiny chunks, with large headers, and no HTTP at all."""
    before = Watch(besieged)
    n_descriptors, n_bytes = before.n_descriptors, [before.rss]
    for _ in range(n_floods):
        with Watch(besieged) as watch:
            assert apart(besiege, besieged.port) == N_CONNECTIONS
        assert watch.n_failed == 0
        assert watch.n_answered >= len(ALWAYS_ANSWERED)
        eventually(lambda: watch.n_descriptors <= SHARE * n_descriptors)
        n_bytes.append(watch.rss)
    n_first = min(N_FIRST, n_floods)
    assert n_bytes[n_first] - n_bytes[0] < MOST_FIRST_BYTES, n_bytes
    assert n_bytes[-1] <= SHARE * n_bytes[n_first], n_bytes
