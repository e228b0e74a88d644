"""The result of a check of an image, and its run: its claim holds with what was seen, fails, or cannot be tried."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Verdict = Literal["holds", "FAILS", "skipped"]

Subject = TypeVar("Subject")
Check = Callable[[Subject], str]
"""Returns what was seen, in a few words. Raises: Skipped; anything else means that the claim does not hold."""


class Skipped(Exception):
    """The check cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    claim: str
    verdict: Verdict
    detail: str


def outcome(check: Check[Subject], subject: Subject) -> Outcome:
    """Run the check; its name is its claim."""
    claim = check.__name__.replace("_", " ")
    try:
        return Outcome(claim, "holds", check(subject))
    except Skipped as reason:
        return Outcome(claim, "skipped", str(reason))
    except Exception as error:  # noqa: BLE001  # one check's failure, of whatever kind, must not hide the others
        return Outcome(claim, "FAILS", f"{type(error).__name__}: {error}")
