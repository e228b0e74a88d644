"""Modules of server."""
