"""`make images-test`: build the images, look into them, run them.

    python -m tools.images [cpu cuda metal]

Needs podman and buildah, and what each skipped claim names; as root where a base must be made by debootstrap. The first
run takes minutes for every image, later ones build what has changed. Exit 1 when an image cannot be built or a claim of
it fails, when an image that was named cannot be tried here, and when none could be; 2 for an image that there is not.
"""

import sys
from collections.abc import Iterator

from platformdirs import user_cache_path

from tools.images import contents, docker_cli, life, lint, processors
from tools.images.bases import NoBase
from tools.images.building import Built, NoWheel, build
from tools.images.images import IMAGES, Image, image
from tools.images.outcome import Outcome, outcome
from tools.images.report import Report, page
from tools.images.store import Store, missing_programs

CHECKS = (*contents.CHECKS, *life.CHECKS, *processors.CHECKS, *docker_cli.CHECKS)


def main(names: list[str]) -> int:
    chosen = [image(name) for name in names] if names else list(IMAGES)
    if unknown := [name for name in names if image(name) is None]:
        return _say(f"there is no image {unknown[0]}: images are {', '.join(image.name for image in IMAGES)}", 2)
    if missing := missing_programs(["podman", "buildah"]):
        return _say(f"{' and '.join(missing)} must be installed", 1)
    store = Store(user_cache_path("llorch-worker") / "images")
    report = _try_all(store, [image for image in chosen if image], frozenset(names))
    sys.stdout.write(page(report))
    return 1 if report.has_failed else 0


def _try_all(store: Store, images: list[Image], named: frozenset[str]) -> Report:
    built: list[Built] = []
    outcomes = [("Dockerfiles", outcome(check, store)) for check in lint.CHECKS]
    for each in images:
        outcomes += [(each.name, found) for found in _try(store, each, built)]
    return Report(tuple(built), tuple(outcomes), named)


def _try(store: Store, wanted: Image, built: list[Built]) -> Iterator[Outcome]:
    """Build it, note it in `built`, and check it. An image that cannot be built here is skipped."""
    _say(f"==> {wanted.tag}: building", 0)
    try:
        result = build(store, wanted)
    except (NoBase, NoWheel) as reason:
        yield Outcome("it is built", "skipped", str(reason))
        return
    except Exception as error:  # noqa: BLE001  # the other images are still to be tried
        yield Outcome("it is built", "FAILS", f"{type(error).__name__}: {error}")
        return
    built.append(result)
    for check in CHECKS:
        found = outcome(check, result)
        _say(f"{wanted.name}: {found.claim}: {found.verdict}", 0)
        yield found


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
