"""The way from a configuration to a running model: this room puts all others of the engine process together.

It runs on the step thread, before the first step.
"""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
