"""How many workers a load needs, and what each way to route it costs: real engines under a clock of events.

Never in the wheel. docs/scaling.md says what it found.
"""
