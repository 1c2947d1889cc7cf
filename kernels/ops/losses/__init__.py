"""Losses over a large vocabulary."""
