"""The reference: SafeTensors checkpoints through PyTorch and transformers.

The only room with torch and transformers; both come with the `parity` extra. No code of a checkpoint is ever run (no
trust_remote_code), and nothing here asks the network.
"""
