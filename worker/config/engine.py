"""The first frame made: of the settings of `serve` for the first engine, and of its facts for each that follows."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from worker.config.engine_settings import Configure, DraftModelAsked, EngineSettings
from worker.config.settings import Settings
from worker.errors import UsageError
from worker.wire.load import Loaded

_MAX_TEMPLATE_BYTES = 2**20
"""The largest chat template; the longest that a model is known to have is forty times shorter. A user who gives the
model file by mistake gets an error."""


def configure(
    settings: Settings,
    model_path: Path,
    template: str | None = None,
    draft_path: Path | None = None,
    *,
    arena_fd: int = -1,
) -> Configure:
    """The engine's first frame. `template` is what read_chat_template found; `arena_fd` is memory that each engine
    inherits.
    """
    own: dict[str, Any] = {each.name: getattr(settings, each.name) for each in fields(EngineSettings)}
    own |= {name: value.absolute() for name, value in own.items() if isinstance(value, Path)}
    return Configure(
        **own,
        model_path=str(model_path.absolute()),
        template=template,
        draft=None if draft_path is None else _draft(settings, draft_path),
        kernels_dir=str((settings.models_dir / ".kernels").absolute()),
        reports_blocks=settings.kv_events is not None,
        wants_numerics=settings.parity_report is not None,
        arena_fd=arena_fd,
    )


def _draft(settings: Settings, path: Path) -> DraftModelAsked:
    """A draft model without a device of its own goes where the model may go."""
    own = "cpu" if settings.wants_no_layers else settings.device
    return DraftModelAsked(str(path.absolute()), settings.draft_device or own, settings.draft_max)


def successor_of(config: Configure, facts: Loaded) -> Configure:
    """Return the configuration of the next engine, after one with this configuration was loaded.

    It gets the same plan, whatever memory is free by then, so that accepted jobs still fit; and the costs of steps,
    which take up to a second to measure.
    """
    return replace(config, predecessor=facts, swa_full="off" if facts.swa_full is False else "on")


def read_chat_template(settings: Settings) -> str | None:
    """The text of --chat-template, or None without one. Raises: UsageError for a file that cannot be a template."""
    path = settings.chat_template
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(found) > _MAX_TEMPLATE_BYTES:
            raise UsageError(
                f"--chat-template {path} has more than {_MAX_TEMPLATE_BYTES} bytes: is it a chat template?"
            )
        text = found.decode()
    except OSError as error:
        raise UsageError(f"--chat-template {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    if not text.strip():
        raise UsageError(f"--chat-template {path} is empty: remove the flag to use the model's own template")
    return text
