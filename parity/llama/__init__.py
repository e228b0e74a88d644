"""Measurements inside llama.cpp that the worker does not need: captured tensors, scores, and states of KV cells."""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
