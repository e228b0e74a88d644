"""The real model and its contexts are those of tests/llama."""

from tests.llama.conftest import loaded, make_context, model, tiny

__all__ = ["loaded", "make_context", "model", "tiny"]
