"""Continuous batching: the jobs of the engine, their slots and cells, the choice of each step, and their text.

The room is pure and runs on the step thread. backend.py and step.py are its interface to the rooms that compute.
"""
