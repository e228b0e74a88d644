"""Frames on the socketpair between the two processes: length, engine generation, msgpack body.

    [u32 body bytes][u32 generation][body]

Pure encoding and decoding. Who sends and when is the business of process/ and front/link.py.
"""

import struct
from collections.abc import Iterator

import msgspec

from worker.wire.messages import Inbound, Outbound

_HEADER = struct.Struct("<II")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Above any honest frame (a 32,768-character prompt is 128 KiB; the longest is the answer about a prompt of 2²¹
characters, each of which is four tokens); a larger length means the peer is broken."""

_encoder = msgspec.msgpack.Encoder()
inbound_decoder: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
outbound_decoder: msgspec.msgpack.Decoder[Outbound] = msgspec.msgpack.Decoder(Outbound)


def encode_frame(generation: int, message: Inbound | Outbound) -> bytes:
    body = _encoder.encode(message)
    return _HEADER.pack(len(body), generation) + body


class FrameBuffer:
    """Bytes in any portions → whole frames."""

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
