"""This package records what the worker answers: to requests, from templates, on command lines, with seeds.

`python -m tests.record` asks all of it again and shows what has become another (CONTRIBUTING.md). The rows are in
*.jsonl, a line each: what is asked and what the answer was. Ids, times and ports are masked (masks.py).
"""
