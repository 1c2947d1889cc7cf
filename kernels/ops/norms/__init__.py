"""LayerNorm and RMSNorm, alone and of a sum: forward, backward, others' kernels."""
