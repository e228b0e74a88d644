"""scripts/pin_bases.py: every base of every Dockerfile gets its digest, and a release without one is refused."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.loopback import HOST, LoopbackServer, QuietHandler
from tests.scripts import script_module

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "pin_bases.py"
DIGEST, NEWER = f"sha256:{'0a' * 32}", f"sha256:{'1b' * 32}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module("pin_bases")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for file in ROOT.glob("Dockerfile.*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def checked(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "scripts" / "pin_bases.py"), "check"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def external(text: str) -> set[str]:
    """The arguments in FROM that name an image, by their use: the script looks for their names."""
    used = set(re.findall(r"^FROM \$\{(\w+)\}", text, re.MULTILINE))
    literal = re.findall(r"^FROM (?:--\S+ )*([a-z][\w./-]*:\S+)", text, re.MULTILINE)
    assert literal == [], "a base that is no argument is not pinned"
    return used


@pytest.mark.parametrize("file", sorted(ROOT.glob("Dockerfile.*")), ids=lambda file: file.name)
def test_every_external_base_is_an_argument_that_the_script_finds(script: ModuleType, file: Path) -> None:
    text = file.read_text()
    assert external(text)
    assert len(script.bases(text)) == len(external(text))


def test_all_bases_are_pinned_and_pinned_anew_and_nothing_else_changes(script: ModuleType, checkout: Path) -> None:
    for file in checkout.glob("Dockerfile.*"):
        text = file.read_text()
        names = script.bases(text)
        first = script.pinned(text, dict.fromkeys(names, DIGEST))
        assert first.count(f"@{DIGEST}") == len(names)
        assert script.bases(first) == names
        again = script.pinned(first, dict.fromkeys(names, NEWER))
        assert again == first.replace(DIGEST, NEWER)
        assert re.sub(r"@sha256:\w+", "", again) == re.sub(r"@sha256:\w+", "", text)
        file.write_text(first)
    assert checked(checkout).returncode == 0


def test_a_release_without_a_digest_is_refused_and_the_base_is_named(script: ModuleType, checkout: Path) -> None:
    for file in checkout.glob("Dockerfile.*"):
        file.write_text(script.pinned(file.read_text(), dict.fromkeys(script.bases(file.read_text()), DIGEST)))
    cpu = checkout / "Dockerfile.cpu"
    cpu.write_text(cpu.read_text().replace(f"@{DIGEST}", ""))
    done = checked(checkout)
    assert done.returncode == 1
    assert re.fullmatch(r"Dockerfile\.cpu: debian:\S+ has no digest: run python scripts/pin_bases\.py\n", done.stderr)


class Hub(QuietHandler):
    """A stand-in for Docker Hub: a token for a repository, and the digest of one tag for who has it."""

    def do_GET(self) -> None:
        assert self.path.endswith("scope=repository:library/debian:pull")
        self.answer(200, {}, b'{"token": "t1"}')

    def do_HEAD(self) -> None:
        is_right = self.path == "/v2/library/debian/manifests/bookworm-slim"
        assert self.headers["Authorization"] == "Bearer t1"
        self.answer(200, {"Docker-Content-Digest": DIGEST} if is_right else {})


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with LoopbackServer(Hub) as server:
        yield f"http://{HOST}:{server.port}"


def test_the_digest_of_a_tag_is_asked_for_with_a_token(script: ModuleType, hub: str) -> None:
    assert script.digest_of("debian:bookworm-slim", hub, hub) == DIGEST
    with pytest.raises(ValueError, match="named no digest"):
        script.digest_of("debian:other", hub, hub)
