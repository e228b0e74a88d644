"""Jobs that ask for a constraint, and the constraints that they get."""

from typing import Any

from msgspec.structs import replace

from tests.constraints.bytewise import submit
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.channels import ChannelState
from worker.wire.jobs import Submit
from worker.wire.messages import Violation


def submitted(*, json_schema: str | None = None, **fields: Any) -> Submit:
    """A job with a divided answer, and with these fields."""
    return replace(submit(json_schema=json_schema), marks="split", **fields)


def constrained(constraints: Constraints, **fields: Any) -> AnswerConstraint:
    found = constraints.constrain(submitted(**fields))
    assert not isinstance(found, Violation), found.message
    assert isinstance(found, AnswerConstraint)
    return found


def begun(constraints: Constraints, place: ChannelState, **fields: Any) -> AnswerConstraint:
    found = constrained(constraints, **fields)
    found.begin(place)
    return found
