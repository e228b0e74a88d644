"""The memory plan: which devices have which layers, how much memory all takes, what fits, and how the load compares.

The room is pure: callers report devices and free bytes.
"""
