import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
