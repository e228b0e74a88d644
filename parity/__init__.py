"""The parity harness: is the quantised model, as the worker runs it, still the reference model?

Short-lived processes of `llorch-worker parity`, which imports the package when the command is called.
"""
