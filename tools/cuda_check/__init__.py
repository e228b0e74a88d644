"""A round of checks on a machine with a GPU: `scripts/cuda_check.sh`, or `python -m tools.cuda_check run`.

__main__.py has the command line, report.py the report's schema, runs.py the way from one to the other, steps.py what is
checked. `--device` takes any device, so that every step can be tried where there is no GPU.
"""

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
