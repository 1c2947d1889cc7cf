"""Attention: its kernels forward, the formula of its gradients, others' kernels."""
