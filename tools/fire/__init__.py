"""Fire: traces of many requests at once at a worker, and the law that each answer is the one alone.

A trace is drawn from a seed, and replayed from its file. Its requests are asked alone first, of a worker that keeps
nothing between them; a worker with `--batch-invariant on` gives the same bytes in any traffic.
"""
