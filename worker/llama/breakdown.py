"""The library's own account of a context's memory, in a dry run too: bytes for each type of buffers.

Owns the reading of what llama_get_memory_breakdown returns: a std::map of C++ (llama-ext.h), whose nodes lie in memory
as the C++ runtime of the library has them. Its nodes are never freed, so it is for short-lived processes.
"""

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from worker.llama.library import library_function
from worker.llama.repack import buffer_type_name
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.upstream.numbers import MEMORY_BREAKDOWN

_WORD = ctypes.sizeof(ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The places of the words of a std::map and of its nodes in a C++ runtime. Both runtimes have four words of a node
    before its value."""

    n_words: int
    root: int
    count: int
    left: int
    right: int


_LIBSTDCXX = _Tree(n_words=6, root=2, count=5, left=2, right=3)
_LIBCXX = _Tree(n_words=3, root=1, count=2, left=0, right=1)
_TREE = _LIBCXX if sys.platform == "darwin" else _LIBSTDCXX
_N_OWN_WORDS = 4


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_size_t * _TREE.n_words),)


class _Node(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_size_t * _N_OWN_WORDS),
        ("buffer_type", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


def breakdown(context: int) -> BufferSizes:
    """The buffers of a context and of its model, by the library's handle. The kind KV is all of its memory, with the
    states of recurrent layers.
    """
    found = library_function(MEMORY_BREAKDOWN, _Map, ctypes.c_void_p)(context)
    nodes = list(_nodes(found.words[_TREE.root]))
    assert len(nodes) == found.words[_TREE.count], "this C++ runtime has a std::map of another form"
    return BufferSizes(tuple(buffer for node in nodes for buffer in _buffers(node) if buffer.size_bytes))


def _nodes(address: int) -> Iterator[_Node]:
    if address:
        node = _Node.from_address(address)
        yield from _nodes(node.words[_TREE.left])
        yield node
        yield from _nodes(node.words[_TREE.right])


def _buffers(node: _Node) -> Iterator[Buffer]:
    name = buffer_type_name(ctypes.c_void_p(node.buffer_type))
    yield Buffer(name, "model", node.model)
    yield Buffer(name, "KV", node.context)
    yield Buffer(name, "compute", node.compute)
