"""llorch-worker: one quantised GGUF model behind the pool-manager protocol."""

__version__ = "0.1.0"
