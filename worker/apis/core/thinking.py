"""The amount of reasoning: the effort that a client names becomes variables of the template, or a limit.

Owns: the words for efforts, and the limits of models whose templates read no effort. Pure.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from worker.apis.core.bodies import Problems

EFFORTS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 2048,
    "medium": 8192,
    "high": None,
    "xhigh": None,
    "max": None,
}
"""The most tokens of reasoning for each effort, if the template does not read the effort itself; None is no limit."""
_EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
"""The variables by which templates turn reasoning on and off."""
_OURS = "llorch:"
"""The beginning of an encrypted_content, and of a signature, that this worker has written. Nothing is encrypted: the
text follows in base64, because a worker that keeps nothing gets its reasoning back from the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A request's wishes about reasoning."""

    variables: dict[str, Any] = field(default_factory=dict)
    """Variables for the template."""
    budget: int | None = None
    """The most tokens of reasoning; None is no limit."""
    ignored: tuple[str, ...] = ()
    """The names of fields without effect."""


def thinking_of(
    problems: Problems, place: str, effort: str | None, keys: frozenset[str], *, budget: int | None = None
) -> Thinking:
    """The effort as variables that the template has, and as a limit. `budget`: the client's own limit, which counts
    instead of the effort's."""
    if effort is None:
        return Thinking(budget=budget)
    if effort not in EFFORTS:
        problems.add(place, "one_of", f"must be one of {', '.join(EFFORTS)}")
        return Thinking()
    if effort == "none":
        return turned_off(keys)
    if _EFFORT in keys:
        return Thinking(variables={_EFFORT: effort}, budget=budget)
    return Thinking(budget=EFFORTS[effort] if budget is None else budget)


def turned_off(keys: frozenset[str]) -> Thinking:
    """No reasoning: the template is asked for none, and what the model writes all the same is closed at once."""
    return Thinking(variables={name: False for name in _SWITCHES if name in keys}, budget=0)


def turned_on(thinking: Thinking, keys: frozenset[str]) -> Thinking:
    """The same with reasoning, for templates that are asked for it."""
    return replace(thinking, variables={**{name: True for name in _SWITCHES if name in keys}, **thinking.variables})


def with_idle_named(
    thinking: Thinking, wishes: Iterable[str], limits: Iterable[str] = (), *, can_limit: bool
) -> Thinking:
    """The same with the names of its fields that have no effect with this model; agents send them to every model.

    `limits` are the fields with a number of tokens, `wishes` the others. `can_limit` says that a limit is kept.
    """
    is_limited = thinking.budget is not None and can_limit
    idle = () if is_limited or thinking.variables else tuple(wishes)
    idle += () if is_limited else tuple(name for name in limits if name.partition(".")[0] not in idle)
    return replace(thinking, ignored=idle)


def encoded_thoughts(text: str) -> str:
    """The reasoning as an encrypted_content or a signature."""
    return _OURS + base64.b64encode(text.encode()).decode()


def decoded_thoughts(encoded: str) -> str:
    """The reasoning's text, if this worker has written it; else nothing."""
    if not encoded.startswith(_OURS):
        return ""
    try:
        return base64.b64decode(encoded.removeprefix(_OURS), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
