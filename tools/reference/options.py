"""An option of a command as a row of a table: its values and its default, in words. Pure."""

from typing import Final

import rich_click as click
from click.types import FloatParamType, IntParamType

from tools.reference.text import code, codes
from worker.config.option import JSON_OBJECT, TextType

_WORDS: Final[dict[type, str]] = {
    click.Path: "a path",
    click.File: "a path",
    IntParamType: "a whole number",
    FloatParamType: "a number",
}


def allowed(option: click.Option) -> str:
    """The values that an option accepts."""
    kind: object = option.type
    if option.is_flag:
        return "on or off"
    if isinstance(kind, click.Choice):
        return codes([str(choice) for choice in kind.choices])
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = _number(kind.min), _number(kind.max)
        return f"{low} to {high}" if high else f"{low} or more"
    if isinstance(kind, TextType) and kind.forms:
        return kind.forms
    if kind is JSON_OBJECT:
        return "a JSON object"
    return next((words for of, words in _WORDS.items() if isinstance(kind, of)), "a text")


def default(option: click.Option) -> str:
    """The value without the option, as its help shows it."""
    if isinstance(option.show_default, str):
        return option.show_default
    if option.is_flag or option.required:
        return "off" if option.is_flag else "required"
    value = option.default
    if value is None or value == () or callable(value) or "UNSET" in str(value):
        return "none"
    return code(_number(value) if isinstance(value, int | float) else str(value))


def without_range(text: str) -> str:
    """A help text without the values in brackets at its end, which have a column of their own."""
    head, bracket, _ = text.rpartition(" [")
    return head if bracket and text.endswith("]") else text


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
