"""The facts of a GGUF file, checked before llama.cpp reads it, and texts that its vocabulary cannot spell.

The room reads the file's header and is pure otherwise. Both processes use it, on any thread.
"""
