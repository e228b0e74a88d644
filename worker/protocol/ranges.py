"""Numbers out of range, in the words clients compare byte for byte (docs/protocol.md 4).

Pure; runs on the front's event loop.
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context
from math import isinf

from worker.protocol.field_errors import FieldError
from worker.protocol.request import narrow

_F32_DIGITS = 9
"""Significant decimal digits that tell any two f32 apart."""


def float_range(field: str, value: float, least: int, most: int, *, subject: str = "") -> Iterator[FieldError]:
    """The error of an f32 outside [least, most], if it is; `subject` is its name where the field has many."""
    if least <= value <= most:
        return
    bound = f"at least {least}.0" if value < least else f"at most {most}.0"
    shown = f32_text(value)
    yield FieldError(
        field=field,
        constraint=f"range({least}.0..={most}.0)",
        message=f"{subject or field} must be {bound} (got {shown})",
        value=shown,
    )


def int_range(field: str, value: int | None, least: int, most: int | None = None) -> Iterator[FieldError]:
    """The error of a whole number outside [least, most], if it is. No `most`: no limit; a value of None is off."""
    if value is None or (least <= value and (most is None or value <= most)):
        return
    bound = f"at least {least}" if value < least else f"at most {most}"
    yield FieldError(
        field=field,
        constraint=f"range({least}..)" if most is None else f"range({least}..={most})",
        message=f"{field} must be {bound} (got {value})",
        value=str(value),
    )


def f32_text(value: float) -> str:
    """The shortest decimal that reads back as this f32, without exponent or trailing `.0`, as Rust prints it."""
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    for digits in range(1, _F32_DIGITS):
        # At a power of two the gap above is twice the gap below: the second nearest may be the one that reads back.
        for rounding in (ROUND_HALF_EVEN, ROUND_UP):
            decimal = Context(prec=digits, rounding=rounding).create_decimal_from_float(value)
            if narrow(float(decimal)) == value:
                return f"{decimal:f}"
    return f"{Context(prec=_F32_DIGITS).create_decimal_from_float(value):f}"
