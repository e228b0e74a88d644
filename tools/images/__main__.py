"""`make images-test`: build the images, look into them, run them.

    python -m tools.images [cpu cuda metal]

Needs podman and buildah, and what each skipped claim names; as root where a base must be made by debootstrap. The first
run takes minutes for every image, later ones build what has changed. Exit 1 when an image cannot be built or a claim of
it fails, when an image that was named cannot be tried here, and when none could be; 2 for an image that there is not.
"""

import shutil
import sys
from collections.abc import Callable, Collection, Iterable
from inspect import getmembers, isfunction
from types import ModuleType
from typing import Any, TypeVar

from platformdirs import user_cache_path

from tools.images import contents, hosts, life, lint
from tools.images.building import Built, build
from tools.images.images import IMAGES, Image
from tools.images.store import Skipped, Store
from tools.markdown import table

Row = tuple[str, str, str, str]
"""The subject of a claim, the claim, its verdict, and what was seen."""
_COLUMNS = ("of", "claim", "verdict", "seen")
_Subject = TypeVar("_Subject")


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in IMAGES]:
        return _say(f"there is no image {unknown[0]}: images are {', '.join(IMAGES)}", 2)
    if missing := [name for name in ("podman", "buildah") if shutil.which(name) is None]:
        return _say(f"{' and '.join(missing)} must be installed", 1)
    store = Store(user_cache_path("llorch-worker") / "images")
    built: dict[str, Built] = {}

    def it_is_built(image: Image) -> str:
        built[image.name] = build(store, image)
        return built[image.name].sizes

    rows = [tried("Dockerfiles", check, store) for check in checks_of(lint)]
    for name in names or IMAGES:
        _say(f"==> {IMAGES[name].tag}: building", 0)
        rows.append(tried(name, it_is_built, IMAGES[name]))
        if name in built:
            rows += [tried(name, check, built[name]) for of in (contents, life, hosts) for check in checks_of(of)]
    verdicts = [row[2] for row in rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("holds", "FAILS", "skipped"))
    sys.stdout.write(f"{table(_COLUMNS, rows)}\n\n{counts}\n")
    return 1 if has_failed(rows, built, names) else 0


def checks_of(module: ModuleType) -> list[Callable[[Any], str]]:
    """The public functions that a module defines, in its order: each name is a claim.

    A check returns what was seen. Raises: Skipped; anything else means that the claim does not hold.
    """
    own = [check for name, check in getmembers(module, isfunction) if not name.startswith("_")]
    own = [check for check in own if check.__module__ == module.__name__]
    return sorted(own, key=lambda check: check.__code__.co_firstlineno)


def tried(of: str, check: Callable[[_Subject], str], subject: _Subject) -> Row:
    claim = check.__name__.replace("_", " ")
    try:
        verdict, seen = "holds", check(subject)
    except Skipped as reason:
        verdict, seen = "skipped", str(reason)
    except Exception as error:  # noqa: BLE001 - one check's failure, of whatever kind, must not hide the others
        verdict, seen = "FAILS", f"{type(error).__name__}: {error}"
    _say(f"{of}: {claim}: {verdict}", 0)
    return of, claim, verdict, " ".join(seen.split())


def has_failed(rows: Iterable[Row], built: Collection[str], named: Iterable[str]) -> bool:
    """True if a claim fails, a named image was not built, or no image was built."""
    return any(row[2] == "FAILS" for row in rows) or not built or not set(named) <= set(built)


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
