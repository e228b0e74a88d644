"""Agents and their frameworks, each in a folder of its own, and how they are run: without updates, telemetry and
internet.

`.clients/npm/NAME` is made once of `packages/NAME.json`, which names packages with their exact versions; npm takes them
from wherever it is configured to. `python -m tests.agents.programs` makes all of them, and the environments of the
frameworks in Python.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import FOLDER, OFFLINE, environment, made_anew

PACKAGES = Path(__file__).parent / "packages"
IN_PYTHON = ("openai-agents", "pydantic-ai")
"""The frameworks in Python."""

QUIET = {
    **dict.fromkeys(["CI", "NO_COLOR", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER"], "1"),
    **dict.fromkeys(["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "PI_OFFLINE", "CLINE_TELEMETRY_DISABLED"], "1"),
    **dict.fromkeys([f"OPENCODE_DISABLE_{what}" for what in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")], "1"),
    **dict.fromkeys(["CONTINUE_METRICS_ENABLED", "CONTINUE_TELEMETRY_ENABLED"], "0"),
    "IS_SANDBOX": "1",  # Claude Code refuses to run as root without it
}
"""The variables that turn off updates and telemetry, agent by agent."""

OF_THIS_PROCESS = ("PATH", "LANG", "LC_ALL", "TMPDIR")
"""The variables that an agent inherits."""


@dataclass(frozen=True, slots=True)
class Said:
    """The end of a program, and its output."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Program:
    """Made by `program`."""

    folder: Path

    def run(self, command: str, home: Path, extra: Mapping[str, str] | None = None, timeout_s: float = 240) -> Said:
        """The output of a shell command in `home`'s folder `work`, in which the agent's programs are found."""
        inherited = {name: os.environ[name] for name in OF_THIS_PROCESS if name in os.environ}
        path = os.pathsep.join([str(self.folder / "node_modules" / ".bin"), inherited.get("PATH", os.defpath)])
        work = home / "work"
        work.mkdir(exist_ok=True)
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=work,
            env={**inherited, **OFFLINE, **QUIET, "PATH": path, "HOME": str(home), **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        return Said(done.returncode, done.stdout)


def program(name: str) -> Program:
    """The program of `packages/NAME.json`, installed anew if that has changed. Raises: CalledProcessError."""
    package, folder = PACKAGES / f"{name}.json", FOLDER / "npm" / name
    with made_anew(folder, package) as is_needed:
        if is_needed:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_bytes(package.read_bytes())
            options = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
            subprocess.run(["npm", "install", *options], cwd=folder, check=True)  # noqa: S607 - the one on PATH
    return Program(folder)


def main() -> None:
    for package in sorted(PACKAGES.glob("*.json")):
        program(package.stem)
    for name in IN_PYTHON:
        environment(name)


if __name__ == "__main__":
    main()
