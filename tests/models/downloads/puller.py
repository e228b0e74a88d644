"""The shared parts of the tests of downloading: a small file on a hub, a child process that pulls it, and its end."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hub_stand_in import HubStandIn
from worker.models.downloads.catalog import CatalogEntry, FileSource, Located

REPO = "acme/tiny-gguf"
REFERENCE = f"hf:{REPO}::file=tiny.gguf"
HUB_SOURCE = f'{{ kind = "hf", repo = "{REPO}", file = "tiny.gguf" }}'
CONTENT = random.Random(1).randbytes(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PATIENCE_S = 60


@contextmanager
def stocked_hub() -> Iterator[HubStandIn]:
    """A stand-in that has the file in a repository and as a plain file."""
    with HubStandIn() as hub:
        hub.add(REPO, "tiny.gguf", CONTENT)
        hub.plain["tiny.gguf"] = CONTENT
        yield hub


class Puller:
    """`llorch-worker models pull` in a child process: the hub's client reads its environment when it is imported."""

    def __init__(self, hub_url: str, models_dir: Path, home: Path) -> None:
        self.models_dir = models_dir
        self.home = home
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HF_HOME": str(home / "hf"),
            "HF_ENDPOINT": hub_url,
            "LLORCH_MODELS_DIR": str(models_dir),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "worker", "models", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*before, *self.command(*arguments)],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def pull(self, reference: str = REFERENCE, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("pull", reference, before=(), **env)

    def catalog(self, *, sha256: str = DIGEST, source: str = HUB_SOURCE) -> str:
        """A catalogue with the one model `tiny`; returns its path."""
        file = self.home / "catalog.toml"
        model = f'name = "tiny"\ndefault = true\nfile = "tiny.gguf"\nsha256 = "{sha256}"\nlicense = "MIT"\n'
        file.write_text(f"[[model]]\n{model}sources = [{source}]\n")
        return str(file)


def files_in(folder: Path) -> set[str]:
    """Names of all files below, but for the locks."""
    return {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def pulled(result: subprocess.CompletedProcess[str]) -> Path:
    """The path a successful pull printed."""
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return Path(result.stdout.rstrip("\n"))


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The one error line of a failed pull; nothing was printed on stdout."""
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1] == errors[0]
    return errors[0]


def wanted(models_dir: Path, *sources: FileSource, sha256: str = DIGEST, size_bytes: int | None = None) -> Located:
    entry = CatalogEntry(
        name="tiny",
        file="tiny.gguf",
        sha256=sha256,
        license="MIT",
        sources=sources,
        size_bytes=size_bytes,
        default=True,
    )
    return Located(models_dir / entry.file, is_present=False, wanted=entry)


def ignore(done_bytes: int, total_bytes: int | None) -> None:
    """Progress that nobody watches."""
