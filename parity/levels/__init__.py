"""One module per level. Each compares one thing and gives a `Level` (report.py)."""
