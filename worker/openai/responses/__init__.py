"""The Responses of OpenAI's wire: requests become jobs, and deltas of answers become items and events."""
