"""Values as JSON or MessagePack, and descriptions of the fields of structs. Any thread may call these.

The `encode` of msgspec 0.22 reads a null pointer if its buffer cannot grow, and the process ends. `encode_into` raises
MemoryError.
"""

from pathlib import PurePath
from typing import Annotated, Any, get_args

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


def _plain(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no MessagePack")


_json = msgspec.json.Encoder()
_messagepack = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode_json(value: object) -> bytes:
    """Raises: TypeError for a value that has no JSON."""
    buffer = bytearray()
    _json.encode_into(value, buffer)
    return bytes(buffer)


def encode_messagepack(value: object) -> bytes:
    """Raises: TypeError for a value that has no MessagePack."""
    buffer = bytearray()
    _messagepack.encode_into(value, buffer)
    return bytes(buffer)


def doc(description: str, **bounds: Any) -> msgspec.Meta:
    """A field's description for the OpenAPI document. The bounds are only part of the document: a
    request that breaks one is answered with 400, not 422."""
    return msgspec.Meta(description=description, extra_json_schema=bounds or None)


def bounds_of(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """The bounds in the description of a struct's field, as `doc` got them."""
    metas = (meta for meta in get_args(field.type)[1:] if isinstance(meta, msgspec.Meta))
    return {name: bound for meta in metas for name, bound in (meta.extra_json_schema or {}).items()}
