"""llama-server's own routes: a gap in a text is filled, and texts become tokens and back."""
