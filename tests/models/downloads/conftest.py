"""The hub that the tests of downloads ask, and the one that pulls from it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_stand_in import HubStandIn
from tests.models.downloads.puller import Puller, stocked_hub


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with stocked_hub() as hub:
        yield hub


@pytest.fixture
def puller(hub: HubStandIn, tmp_path: Path) -> Puller:
    return Puller(hub.url, tmp_path / "models", tmp_path)
