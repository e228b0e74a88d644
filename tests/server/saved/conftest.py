"""Real and random models and contexts of them, as the tests of llama/ have them."""

from tests.llama.conftest import load_random, loaded, make_context, model

__all__ = ["load_random", "loaded", "make_context", "model"]
