"""podman and buildah with a store of their own: images and containers of these tests never meet the user's.

The store lies in the user's cache.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PATIENCE_S = 3600.0
"""The longest that one program may take; a build with llama.cpp in it takes most of an hour on two busy processors."""

_MAX_PROCESSES = 4096
"""Podman's own default is more than a container without CAP_SYS_RESOURCE may ask for."""


class Skipped(Exception):
    """A claim cannot be tried here; the text says why."""


@dataclass(frozen=True)
class Store:
    """`folder`: where everything lies."""

    folder: Path

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The environment for every podman, buildah and docker that uses this store; written at the first use."""
        self.folder.mkdir(parents=True, exist_ok=True)
        storage, containers = self.folder / "storage.conf", self.folder / "containers.conf"
        roots = f'graphroot = "{self.folder / "images"}"\nrunroot = "{self.folder / "run"}"\n'
        storage.write_text(f'[storage]\ndriver = "overlay"\n{roots}', encoding="utf-8")
        containers.write_text(_containers_conf(), encoding="utf-8")
        return {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(storage),
            "CONTAINERS_CONF": str(containers),
            "BUILDAH_ISOLATION": "chroot",
            "DOCKER_HOST": f"unix://{self.socket}",
        }

    @property
    def socket(self) -> Path:
        """The socket where podman answers like a Docker engine while the real docker client is tried."""
        return self.folder / "podman.sock"

    def run(self, *command: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run to the end and keep what it said, whatever its exit code."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def ask(self, *command: str) -> str:
        """The output on stdout. Raises: AssertionError with its stderr if it failed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}: {last_lines(done.stderr)}"
        return done.stdout

    def need(self, program: str) -> str:
        """The path of a program. Raises: Skipped."""
        path = shutil.which(program)
        if path is None:
            raise Skipped(f"{program} is not installed")
        return path


def last_lines(text: str, n: int = 12) -> str:
    """The last lines of a program, on one line."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-n:])


def _containers_conf() -> str:
    """No systemd, no limits above our own, and the short name of an image means the one that was built here."""
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    return (
        "[containers]\n"
        f'default_ulimits = ["nofile={max_files}:{max_files}", "nproc={_MAX_PROCESSES}:{_MAX_PROCESSES}"]\n'
        f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        "compat_api_enforce_docker_hub = false\n"
    )
