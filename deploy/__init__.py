"""Examples of how others run workers. Nothing of them is in the wheel."""
