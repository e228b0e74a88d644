"""The pool manager's API: `/execute` and `/cancel`, and the framings of their events."""
