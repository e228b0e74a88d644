"""Benchmarks: this worker against itself and against other servers, on the same machine."""
