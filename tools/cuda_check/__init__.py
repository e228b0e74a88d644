"""A round of checks on a machine with a GPU: `scripts/cuda_check.sh`, or `python -m tools.cuda_check run`.

`--device` takes any device, so that every step can be tried where there is no GPU.
"""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
