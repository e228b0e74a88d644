"""The tiny model is that of tests/llama."""

from tests.llama.conftest import tiny

__all__ = ["tiny"]
