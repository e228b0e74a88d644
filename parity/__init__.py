"""The parity harness: is the quantised model, as the worker runs it, still the reference model?

Short-lived processes of `llorch-worker parity`; the worker never imports this package. It finds the command by its
entry point (pyproject.toml).
"""
