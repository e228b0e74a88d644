"""KV cells copied out of a context: their bytes, the memory and the files that they lie in, and their keeper.

The step thread makes copies, and the keeper's thread saves them for the engine's successor.
"""
