"""Anthropic's Messages: requests become jobs, and deltas of answers become blocks and events."""
