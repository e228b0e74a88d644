"""The parity harness: is the quantised model, as the worker runs it, still the reference model?

Short-lived processes of `llorch-worker parity`; the worker never imports this package. It finds the command by its
entry point (pyproject.toml).
"""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
