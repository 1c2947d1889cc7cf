"""Layers of a transformer, composed of the package's operations."""
