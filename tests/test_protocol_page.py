"""docs/protocol.md is whole: what the worker says to the outside is on the page, by its own names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from worker import errors
from worker.apis.core.bodies import HealthBody, ReadyCallback
from worker.apis.core.events import EVENT_TYPES, StreamCode
from worker.config.settings import options
from worker.server.front.admission import Phase
from worker.wire.load import Tried

PAGE = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()
NAMED = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`[^`\n]+`", PAGE))))
"""The words of everything set as code."""


def codes() -> Iterator[str]:
    """The codes of errors outside a stream, and of failed starts. A wrong command line has no code on stderr."""
    for error in vars(errors).values():
        is_told = isinstance(error, type) and issubclass(error, errors.WorkerError) and error is not errors.UsageError
        if is_told and "code" in vars(error):
            yield error.code


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("stream event", EVENT_TYPES),
        ("stream code", get_args(StreamCode)),
        ("state", [phase.name.lower() for phase in Phase]),
        ("key of /health", HealthBody.__struct_fields__ + Tried.__struct_fields__),
        ("key of the callback", ReadyCallback.__struct_fields__),
        ("code", list(codes())),
    ],
)
def test_the_page_names_every(kind: str, names: list[str]) -> None:
    assert [name for name in names if name not in NAMED] == [], kind


def test_every_flag_on_the_page_is_one_that_there_is() -> None:
    flags = {option.opts[0] for option in options()} | {"--config"}
    legacy = {"--gpu-device", "--cuda-device", "--metal-device", "--gpu", "--backend", "--hive-url", "--queen-url"}
    legacy |= {"--local-mode", "--kv-cache-size-mb", "--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - flags - legacy == set()
