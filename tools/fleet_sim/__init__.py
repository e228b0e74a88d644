"""A simulation of the number of workers that a load needs, and of the cost of each routing policy. It runs real engines
under a clock of events.

Never in the wheel. docs/scaling.md says what it found.
"""
