"""A worker as its clients see it: started or found, asked over HTTP, its streams read.

Parity, the benchmarks and the tests judge and drive workers with it; the worker itself never imports this room. It may
import config and errors.
"""
