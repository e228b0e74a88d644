"""A row of logits becomes a token: bias, penalties, cuts, the draw and log-probabilities.

The room is pure, and the only pure room with numpy. It runs on the step thread and on those that draw along with it.
"""
