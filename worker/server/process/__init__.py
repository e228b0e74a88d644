"""The engine process: the intake thread, the step thread's work between steps, and the outbox to the front.

The room has the threads; engine has what a step does.
"""
