"""Tools to the grammar of calls in the model's own notation. The intake thread writes it."""
