"""Values as JSON or MessagePack, frames on the socketpair, and descriptions of the fields of structs, for any thread.

The `encode` of msgspec 0.22 reads a null pointer if its buffer cannot grow, and the process ends. `encode_into` raises
MemoryError.
"""

import struct
from collections.abc import Iterator
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

_HEADER = struct.Struct("<I")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A limit above any valid frame: a prompt of 32,768 characters is 128 KiB; the longest frame is the answer about a
prompt of 2²¹ characters with four tokens each. A larger length means that the peer is broken."""


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


def encode_frame(message: object) -> bytes:
    """`[u32 body bytes][msgpack body]`."""
    body = encode_messagepack(message)
    return _HEADER.pack(len(body)) + body


class FrameBuffer:
    """Turns bytes in any portions into the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the body of every frame that is complete. Raises: ValueError for an impossible length."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (n_body,) = _HEADER.unpack_from(self._buffer, start)
            if n_body > MAX_BODY_BYTES:
                raise ValueError(f"a frame claims {n_body} bytes; at most {MAX_BODY_BYTES} are possible")
            end = start + _HEADER.size + n_body
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + _HEADER.size : end])
            start = end
        del self._buffer[:start]
