"""The descriptions of the images agree with the Dockerfiles, and the Dockerfiles with each other. Builds nothing."""

import re

import pytest

from tools import CHECKOUT
from tools.images import contents, hosts, life, lint
from tools.images.__main__ import checks_of, has_failed, main, tried
from tools.images.images import IMAGES, Image
from tools.images.store import Skipped
from worker import __version__

each_image = pytest.mark.parametrize("image", IMAGES.values(), ids=lambda image: image.name)


def text(image: Image) -> str:
    return image.dockerfile.read_text(encoding="utf-8")


def test_every_dockerfile_has_a_description() -> None:
    assert {path.name for path in CHECKOUT.glob("Dockerfile*")} == {f"Dockerfile.{name}" for name in IMAGES}


@each_image
def test_a_dockerfile_agrees_with_the_description_and_with_what_is_let_in(image: Image) -> None:
    assert f"COPY {image.wheels.relative_to(CHECKOUT)}/ /wheels/" in text(image)
    assert f"scripts/build_llama.sh {' '.join(image.wheel)}" in text(image)
    assert f"ARG VERSION={__version__}\n" in text(image)
    let_in = re.findall(r"^!(\w[\w.]*)", (CHECKOUT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    lines = re.findall(r"^COPY (?!--from)(.*)$", text(image), re.MULTILINE)
    copied = {word.split("/")[0] for line in lines for word in line.split()[:-1] if not word.startswith("--")}
    assert copied
    assert copied <= set(let_in)
    last = text(image).rpartition("\nFROM ")[2]
    assert "bill.py --debian /opt/llorch-worker/lib/python3*/site-packages" in last
    assert last.index("COPY --from=worker") < last.index(">/opt/llorch-worker/bill-of-materials.cdx.json")


def ending(image: Image) -> list[str]:
    """The instructions from USER on, without comments."""
    lines = text(image).splitlines()
    rest = lines[lines.index("USER 10001:10001") :]
    return [line for line in rest if not line.startswith("#") and "description" not in line]


@each_image
def test_all_images_are_run_alike(image: Image) -> None:
    assert ending(image) == ending(IMAGES["cpu"])


@each_image
def test_every_stage_begins_with_a_base_or_a_stage(image: Image) -> None:
    named = re.findall(r"^ARG (BASE|TOOLKIT)=\S+$", text(image), re.MULTILINE)
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text(image), re.MULTILINE)
    begins = re.findall(r"^FROM (\S+)", text(image), re.MULTILINE)
    copied = re.findall(r"^COPY --from=(\S+)", text(image), re.MULTILINE)
    assert {*begins, *copied} - {*stages, "scratch", "wheel-${WHEEL}"} == {f"${{{name}}}" for name in named}
    assert re.search(r"^FROM \$\{BASE\} AS python$", text(image), re.MULTILINE)
    assert begins[-1] == "python"


def it_cannot_be_tried(_: None) -> str:
    raise Skipped("no qemu")


def it_is_wrong(_: None) -> str:
    raise AssertionError("1 | 2")


def test_a_failed_claim_and_an_image_that_was_not_built_fail_the_run() -> None:
    """If no base can be pulled or made, every claim is skipped, and the run has shown nothing."""
    found = [tried("cpu", check, None) for check in (lambda _: "seen", it_cannot_be_tried, it_is_wrong)]
    assert found[1:] == [
        ("cpu", "it cannot be tried", "skipped", "no qemu"),
        ("cpu", "it is wrong", "FAILS", "AssertionError: 1 | 2"),
    ]
    assert has_failed(found, ["cpu"], [])
    assert not has_failed(found[:2], ["cpu"], ["cpu"])
    assert has_failed(found[:2], ["cpu"], ["cpu", "metal"])
    assert has_failed([], [], [])


def test_every_claim_is_a_check_and_an_image_that_there_is_not_is_a_mistake() -> None:
    assert [len(checks_of(module)) for module in (lint, contents, life, hosts)] == [3, 9, 11, 3]
    assert main(["tpu"]) == 2
