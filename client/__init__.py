"""A worker as its clients see it: started or found, asked over HTTP, its streams read.

For what judges and drives workers: parity, the benchmarks and the tests. The worker itself never imports this room.
"""
