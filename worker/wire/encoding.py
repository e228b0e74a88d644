"""Values as JSON or MessagePack; any thread may call these. The `encode` of msgspec 0.22 reads a null pointer if its
buffer cannot grow, and the process ends. `encode_into` raises MemoryError.
"""

import msgspec

_json = msgspec.json.Encoder()
_messagepack = msgspec.msgpack.Encoder()


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
