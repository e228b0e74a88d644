"""What the OpenAPI document tells of a field beside its type, as annotations that the field carries.

Pure. msgspec makes the schema from them (openapi.py); it does not hold what is decoded to an `extra` bound.
"""

from typing import Annotated, Any

import msgspec


def doc(description: str, **bounds: Any) -> msgspec.Meta:
    """A field's description. The bounds are told only: breaking one of a request's is a 400, not a 422."""
    return msgspec.Meta(description=description, extra_json_schema=bounds or None)


U64_MAX = 2**64 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""msgspec's own bounds end at 2**63 - 1."""
Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339."""
