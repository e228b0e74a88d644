"""One module per level. Each compares one thing and gives a `Level` (results.py)."""
