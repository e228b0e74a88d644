"""A Python environment of its own for each client package, and what runs in it.

`.clients/NAME` is made once of `requirements/NAME.txt`, which pins every package; pip takes them from wherever it is
configured to. What runs there reaches this machine only: it is told of a proxy that is not there, and that no hub is.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".clients"
REQUIREMENTS = Path(__file__).parent / "requirements"
PROGRAMS = Path(__file__).parent / "programs"

_NO_PROXY = "http://127.0.0.1:9"
"""The port of the service that discards everything; nobody has it."""

OFFLINE = {
    **dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], _NO_PROXY),
    **dict.fromkeys(["NO_PROXY", "no_proxy"], "127.0.0.1,localhost"),
    **dict.fromkeys(["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK"], "1"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """Made by `environment`."""

    folder: Path

    def run(
        self, *command: str, cwd: Path | None = None, extra: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> str:
        """The output of a command of the environment. Raises: AssertionError with all of it if the command fails."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLORCH_", "OPENAI_"))}
        path = os.pathsep.join([str(self.folder / "bin"), kept.get("PATH", os.defpath)])
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**kept, **OFFLINE, "PATH": path, **(extra or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


@contextmanager
def made_anew(folder: Path, source: Path) -> Iterator[bool]:
    """True if the folder is not made of this source, which it is once the block ends."""
    made_of = folder / "made-of"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    is_needed = not made_of.is_file() or made_of.read_text() != digest
    yield is_needed
    if is_needed:
        made_of.write_text(digest)


def environment(name: str) -> Environment:
    """The environment of `requirements/NAME.txt`, made anew where that has changed. Raises: CalledProcessError."""
    requirements, folder = REQUIREMENTS / f"{name}.txt", FOLDER / name
    with made_anew(folder, requirements) as is_needed:
        if is_needed:
            pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([*pip, "--requirement", str(requirements)], check=True)
    return Environment(folder)
