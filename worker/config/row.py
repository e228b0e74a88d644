"""The form of a setting's row: a dataclass field with its default, its help and its values. option.py makes its option.

Pure, and light to import: the engine process reads the rows, too.
"""

from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

Panel = Literal["Model", "Device and memory", "Jobs", "Network", "Operation"]

JsonText = Annotated[str, "JSON"]
"""The text of a JSON object."""


class Form(NamedTuple):
    """A text that a pattern allows, and what that is in words."""

    pattern: str
    words: str


def setting(default: Any, help: str, values: Any = None, *, panel: Panel, **rest: Any) -> Any:
    """A dataclass field whose metadata makes its option. Any: it has its setting's type.

    `values`: the least and the largest number, a Form, a tuple of words, or a type of click's. Without them the field's
    annotation says what is allowed. `rest` is in click's words.
    """
    return field(default=default, metadata={"help": help, "panel": panel, "values": values, **rest})


of_model = partial(setting, panel="Model")
of_devices = partial(setting, panel="Device and memory")
of_jobs = partial(setting, panel="Jobs")
of_network = partial(setting, panel="Network")
of_operation = partial(setting, panel="Operation")
