"""The parity harness: is the quantised model, as the worker runs it, still the reference model?

Short-lived processes of `llorch-worker parity`; the serving processes never import this room.
"""

# llama.cpp before numpy: where a compiler has put a copy of the C++ library into each library, the first one loaded
# gives all of them its locales and regular expressions, and llama.cpp crashes on those of numpy's.
import worker.llama.library  # noqa: F401
