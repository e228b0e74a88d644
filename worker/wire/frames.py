"""Frames on the socketpair between the two processes: length, engine generation, msgpack body.

    [u32 body bytes][u32 generation][body]

This is pure encoding and decoding. server/process and server/front/link.py decide who sends and when.
"""

import struct
from collections.abc import Iterator

import msgspec

from worker.wire.encoding import encode_messagepack
from worker.wire.messages import Outbound

_HEADER = struct.Struct("<II")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A limit above any valid frame: a prompt of 32,768 characters is 128 KiB; the longest frame is the answer about a
prompt of 2²¹ characters with four tokens each. A larger length means that the peer is broken."""

outbound_decoder: msgspec.msgpack.Decoder[Outbound] = msgspec.msgpack.Decoder(Outbound)


def encode_frame(generation: int, message: object) -> bytes:
    body = encode_messagepack(message)
    return _HEADER.pack(len(body), generation) + body


class FrameBuffer:
    """Turns bytes in any portions into whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (generation, body) of every frame that is complete. Raises: ValueError for an impossible length."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            n_body, generation = _HEADER.unpack_from(self._buffer, start)
            if n_body > MAX_BODY_BYTES:
                raise ValueError(f"a frame claims {n_body} bytes; at most {MAX_BODY_BYTES} are possible")
            end = start + _HEADER.size + n_body
            if len(self._buffer) < end:
                break
            yield generation, bytes(self._buffer[start + _HEADER.size : end])
            start = end
        del self._buffer[:start]
