"""A coverage-guided fuzzer of the worker's own parsers, each held to a law."""
