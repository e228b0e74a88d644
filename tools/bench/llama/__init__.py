"""The side of llama.cpp in the benchmarks: its own sampler chains."""
