"""The worker that the tests of the `/v1` door share, on the real model."""

from tests.worker_process import serving

worker = serving("default_model", "--parallel", "8", "--ctx-size", "8192", scope="package")
"""It is for every test that leaves the worker as it found it. It has eight slots."""
