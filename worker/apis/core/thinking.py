"""The amount of reasoning: the effort that a client names becomes variables of the template, or a limit."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.apis.core.bodies import Problems
from worker.apis.core.request import Terms

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

SIGNATURE = "llorch"
"""The signature of a thinking block that has its text. Clients give back a block with a signature only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A request's wishes about reasoning."""

    variables: dict[str, Any] = field(default_factory=dict)
    """Variables for the template."""
    budget: int | None = None
    """The most tokens of reasoning; None is no limit."""
    ignored: tuple[str, ...] = ()
    """The names of fields without effect."""


def read_thinking(
    problems: Problems,
    place: str,
    effort: str | None,
    terms: Terms,
    *,
    is_on: bool | None = None,
    budget: int | None = None,
    wishes: Iterable[str],
    limits: Iterable[str] = (),
    allows_any: bool = False,
) -> Thinking:
    """The effort at `place` as a variable of the template, or as a limit if the template does not read it.

    `is_on`: the client's switch. `budget`: its own limit, which counts instead of the effort's. `limits` names the
    fields with a number of tokens, `wishes` the others: those without effect on this model are reported, because agents
    send them to every model. `allows_any`: another word is the template's own.
    """
    keys = terms.template_keys
    if effort not in (None, *EFFORTS) and not allows_any:
        problems.add(place, "one_of", f"must be one of {', '.join(EFFORTS)}")
    switch = False if effort == "none" else is_on
    variables: dict[str, Any] = {} if switch is None else {name: switch for name in _SWITCHES if name in keys}
    if switch is False:
        budget = 0  # what the model writes all the same is closed at once
    elif effort is not None and _EFFORT in keys:
        variables[_EFFORT] = effort
    elif effort is not None and budget is None:
        budget = EFFORTS.get(effort)
    is_limited = budget is not None and terms.can_limit_reasoning
    idle = () if is_limited or variables else tuple(wishes)
    idle += () if is_limited else tuple(name for name in limits if name.partition(".")[0] not in idle)
    return Thinking(variables=variables, budget=budget, ignored=idle)


def encoded_thoughts(text: str) -> str:
    """The reasoning as an encrypted_content or a signature."""
    return _OURS + base64.b64encode(text.encode()).decode()


def decoded_thoughts(encoded: str) -> str:
    """The reasoning's text, if this worker has written it; else nothing."""
    if not encoded.startswith(_OURS):
        return ""
    try:
        return base64.b64decode(encoded.removeprefix(_OURS), validate=True).decode()
    except ValueError:
        return ""
