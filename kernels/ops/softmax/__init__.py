"""Softmax over the last dimension: forward, backward, others' kernels."""
