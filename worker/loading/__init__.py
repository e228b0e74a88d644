"""From a configuration to a model that runs: the room that puts all others of the engine process together."""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
