"""Simulates fleets of workers: the real engine under a clock of events. docs/scaling.md says what it found."""
