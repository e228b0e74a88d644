"""The side of llama.cpp in the benchmarks: its own sampler chains, and rows of logits to draw from."""
