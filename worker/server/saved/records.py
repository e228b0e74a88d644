"""A saved part as bytes that prove what they are: made by whom, of which tokens, and whole. Little-endian.

    magic 8 · binding 32 · n_tokens u32 · kind u32 · n_state_bytes u64 · n_tokens × token i32 · state · code 32

The kind is 0 for cells and 1 for a recurrent state. The tokens are the whole prefix that the state is the end of. The
binding is a digest of all that decides what cells look like and mean; the code is BLAKE2b, with the key, of everything
before it.
"""

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.wire.jobs import TokenId

Buffer = bytes | memoryview

_MAGIC = b"LLORKV01"
_HEAD = struct.Struct("<8s32sIIQ")
BINDING_BYTES = CODE_BYTES = 32
CELLS, CHECKPOINT = 0, 1


class Untrusted(ValueError):
    """The bytes are not a complete record for this model and key."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a record. `state` is a view of the bytes that were read."""

    tokens: list[TokenId]
    state: memoryview
    kind: int = CELLS


def binding_of(*facts: bytes) -> bytes:
    """A digest of the facts in this order; each counts with its length."""
    digest = hashlib.blake2b(digest_size=BINDING_BYTES)
    for fact in facts:
        digest.update(struct.pack("<Q", len(fact)) + fact)
    return digest.digest()


def record_of(tokens: Seq[int], state: Buffer, *, key: bytes, binding: bytes, kind: int = CELLS) -> tuple[Buffer, ...]:
    """A record's bytes in three parts, one behind the other, so that the state need not be copied."""
    head = _HEAD.pack(_MAGIC, binding, len(tokens), kind, len(state)) + array("i", tokens).tobytes()
    return head, state, _code(key, head, state)


def code_of(record: Buffer) -> bytes:
    """The code at a record's end, whether or not it is right."""
    return bytes(record[-CODE_BYTES:])


def read_record(data: Buffer, *, key: bytes, binding: bytes) -> Record:
    """Raises: Untrusted for bytes that were not made with this key, by this binding, or are not as they were made."""
    whole = memoryview(data)
    n_most = len(whole) - _HEAD.size - CODE_BYTES
    if n_most < 0:
        raise Untrusted(f"{len(whole)} bytes are too few")
    magic, bound_to, n_tokens, kind, n_state = _HEAD.unpack_from(whole)
    if magic != _MAGIC or kind not in (CELLS, CHECKPOINT):
        raise Untrusted("it does not begin with the header of saved cells")
    if 4 * n_tokens + n_state != n_most:
        raise Untrusted(
            f"it has {len(whole)} bytes, but its header says {len(whole) - n_most + 4 * n_tokens + n_state}"
        )
    if not hmac.compare_digest(_code(key, whole[:-CODE_BYTES]), whole[-CODE_BYTES:]):
        raise Untrusted("its authentication code is wrong: it is damaged, or was made with another key")
    if bound_to != binding:
        raise Untrusted("it was made by another model or build, or with other settings")
    begin = _HEAD.size + 4 * n_tokens
    tokens = array("i", whole[_HEAD.size : begin].tobytes())
    return Record([TokenId(token) for token in tokens], whole[begin : begin + n_state], kind)


def _code(key: bytes, *parts: Buffer) -> bytes:
    digest = hashlib.blake2b(key=key, digest_size=CODE_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
