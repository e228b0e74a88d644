"""The descriptions of the images agree with the Dockerfiles, and the Dockerfiles with each other. Builds nothing."""

import re
from pathlib import Path

import pytest

from tools import CHECKOUT
from tools.images.bases import stages
from tools.images.building import Built
from tools.images.images import IMAGES, Image
from tools.images.outcome import Outcome, Skipped, outcome
from tools.images.report import Report, page
from tools.images.store import Store
from worker import __version__

each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)


def text(image: Image) -> str:
    return image.dockerfile.read_text(encoding="utf-8")


def test_every_dockerfile_has_a_description() -> None:
    assert {path.name for path in CHECKOUT.glob("Dockerfile*")} == {image.dockerfile.name for image in IMAGES}


@each_image
def test_a_wheel_built_outside_is_copied_from_where_it_is_put(image: Image) -> None:
    assert f"COPY {image.wheels.relative_to(CHECKOUT)}/ /wheels/" in text(image)


@each_image
def test_a_wheel_built_inside_is_built_as_outside(image: Image) -> None:
    assert f"scripts/build_llama.sh {' '.join(image.wheel)}" in text(image)


@each_image
def test_what_is_copied_from_the_checkout_is_not_ignored(image: Image) -> None:
    let_in = re.findall(r"^!(\w[\w.]*)", (CHECKOUT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", text(image), re.MULTILINE)
        for word in line.split()[:-1]
        if not word.startswith("--")
    ]
    assert copied
    assert {word.split("/")[0] for word in copied} <= set(let_in)


@each_image
def test_an_image_says_the_version_of_the_worker(image: Image) -> None:
    assert f"ARG VERSION={__version__}\n" in text(image)


def ending(image: Image) -> list[str]:
    """The instructions from USER on, without comments."""
    lines = text(image).splitlines()
    rest = lines[lines.index("USER 10001:10001") :]
    return [line for line in rest if not line.startswith("#") and "description" not in line]


@each_image
def test_all_images_are_run_alike(image: Image) -> None:
    assert ending(image) == ending(IMAGES[0])


DOCKERFILE = """
ARG BASE=debian:trixie-slim
ARG KIT=kit:1
ARG WHEEL=build
FROM ${BASE} AS python
FROM $KIT AS wheel-build
FROM scratch AS wheel-prebuilt
FROM wheel-${WHEEL} AS wheel
FROM --platform=linux/amd64 python AS libraries
COPY --chmod=644 --from=wheel /wheels /wheels
FROM python
COPY --from=libraries /opt /opt
COPY --from=tool:2 /bin/tool /bin/tool
"""


def test_only_the_images_that_the_last_stage_comes_from_are_needed() -> None:
    assert set(stages(DOCKERFILE, {}).images) == {"debian:trixie-slim", "kit:1", "tool:2"}
    assert set(stages(DOCKERFILE, {"WHEEL": "prebuilt"}).images) == {"debian:trixie-slim", "tool:2"}


def test_a_base_keeps_its_digest_as_an_argument() -> None:
    pinned = f"debian:trixie-slim@sha256:{'0a' * 32}"
    read = stages(DOCKERFILE.replace("debian:trixie-slim", pinned), {})
    assert read.last_base == pinned
    assert read.arguments == {"BASE": pinned, "KIT": "kit:1", "WHEEL": "build"}


@each_image
def test_an_image_has_the_bill_of_what_lies_in_it(image: Image) -> None:
    last = text(image).rpartition("\nFROM ")[2]
    assert "bill.py --debian /opt/llorch-worker/lib/python3*/site-packages" in last
    assert last.index("COPY --from=worker") < last.index(">/opt/llorch-worker/bill-of-materials.cdx.json")


def test_the_last_stage_stands_on_an_image_however_many_stages_are_between() -> None:
    assert stages(DOCKERFILE, {"BASE": "debian:forky"}).last_base == "debian:forky"


def test_a_claim_holds_is_skipped_or_fails_and_only_a_failure_fails_the_run() -> None:
    def it_holds(_: None) -> str:
        return "seen"

    def it_cannot_be_tried(_: None) -> str:
        raise Skipped("no qemu")

    def it_is_wrong(_: None) -> str:
        raise AssertionError("1 | 2")

    found = [outcome(check, None) for check in (it_holds, it_cannot_be_tried, it_is_wrong)]
    assert found == [
        Outcome("it holds", "holds", "seen"),
        Outcome("it cannot be tried", "skipped", "no qemu"),
        Outcome("it is wrong", "FAILS", "AssertionError: 1 | 2"),
    ]
    reports = [Report((built(IMAGES[0]),), tuple(("cpu", each) for each in found[:n])) for n in (2, 3)]
    assert [report.has_failed for report in reports] == [False, True]
    assert "1 holds, 1 FAILS, 1 skipped" in page(Report((), reports[1].outcomes))


def built(image: Image) -> Built:
    return Built(image=image, store=Store(Path("nowhere")), build_s=1.0, base="made")


def test_a_run_without_an_image_that_was_named_or_without_any_fails() -> None:
    """If no base can be pulled or made, every claim is skipped, and the run has shown nothing."""
    first, second = IMAGES[:2]
    assert Report((), ()).has_failed
    assert not Report((built(first),), ()).has_failed
    assert not Report((built(first),), (), frozenset({first.name})).has_failed
    assert Report((built(first),), (), frozenset({first.name, second.name})).has_failed
