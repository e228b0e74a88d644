"""Models: the way of a file to this machine, what it says, where it fits, and how it is loaded."""
