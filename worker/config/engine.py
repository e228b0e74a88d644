"""The first frame made of the settings of `serve`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from worker.config.engine_settings import Configure, EngineSettings
from worker.config.settings import Settings
from worker.errors import UsageError

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
        draft_path=None if draft_path is None else str(draft_path.absolute()),
        kernels_dir=str((settings.models_dir / ".kernels").absolute()),
        reports_blocks=settings.kv_events is not None,
        wants_numerics=settings.parity_report is not None,
        arena_fd=arena_fd,
    )


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
