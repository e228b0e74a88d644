"""The library's own account of a context's memory, in a dry run too: bytes for each type of buffers.

llama_get_memory_breakdown (llama-ext.h) returns a std::map of C++, whose nodes lie in memory as the C++ runtime has
them. They are never freed, so this is for short-lived processes.
"""

import ctypes
import sys
from collections.abc import Iterator

from worker.llama.library import library_function
from worker.llama.repack import buffer_type_name
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.upstream.numbers import MEMORY_BREAKDOWN

_N_WORDS, _ROOT, _COUNT, _LEFT, _RIGHT = (3, 1, 2, 0, 1) if sys.platform == "darwin" else (6, 2, 5, 2, 3)
"""The words of a std::map, and the places of its root, its count, and a node's children, in libc++ and libstdc++."""


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_size_t * _N_WORDS),)


class _Node(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_size_t * 4),
        ("buffer_type", ctypes.c_void_p),
        ("sizes", ctypes.c_size_t * 3),
    )


def breakdown(context: int) -> BufferSizes:
    """The buffers of a context and of its model, by the library's handle. The kind KV is all of its memory, with the
    states of recurrent layers.
    """
    found = library_function(MEMORY_BREAKDOWN, _Map, ctypes.c_void_p)(context)
    nodes = list(_nodes(found.words[_ROOT]))
    assert len(nodes) == found.words[_COUNT], "this C++ runtime has a std::map of another form"
    return BufferSizes(
        tuple(
            Buffer(buffer_type_name(ctypes.c_void_p(node.buffer_type)), kind, size_bytes)
            for node in nodes
            for kind, size_bytes in zip(("model", "KV", "compute"), node.sizes, strict=True)
            if size_bytes
        )
    )


def _nodes(address: int) -> Iterator[_Node]:
    if address:
        node = _Node.from_address(address)
        yield from _nodes(node.words[_LEFT])
        yield node
        yield from _nodes(node.words[_RIGHT])
