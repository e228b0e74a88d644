"""Modules of models."""
