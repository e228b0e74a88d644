"""Settings as `serve` reads them from an argument list and an environment, without this process's own variables."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from worker import cli
from worker.config.settings import Settings

NEEDED = {
    "tensor_split": ["--split-mode=layer"],
    "ubatch_size": ["--batch-size=1048576"],
    "require_parity": ["--parity-report=report.json"],
}
"""Settings that have no meaning without another one."""


def settings_of(argv: Sequence[str], default_model: Callable[[Path | None], str] | None = None) -> Settings:
    """The settings of `serve` from its arguments, the environment and the config file these name.

    Raises: UsageError, or click's for an argument list that cannot be split into flags.
    """
    return cli.read_settings(cli.serve_command().make_context(cli.PROGRAM, list(argv)), default_model)


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    default_model: Callable[[Path | None], str] | None = None,
) -> Settings:
    """Raises: UsageError."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("LLORCH_"):
                patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        return settings_of(argv, default_model)
