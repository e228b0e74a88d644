"""The catalogue of models, the meaning of a `--model` reference, and the way of a file from its source to its place.

References are read on the main thread; files are fetched in a child process.
"""
