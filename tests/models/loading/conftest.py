"""The real model and contexts of it, as the tests of llama/ have them."""

from tests.llama.conftest import loaded, make_context, model

__all__ = ["loaded", "make_context", "model"]
