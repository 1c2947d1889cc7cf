"""Chains of element-wise steps."""
