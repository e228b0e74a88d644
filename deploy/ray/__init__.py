"""A fleet of workers behind one address, with Ray Serve."""
