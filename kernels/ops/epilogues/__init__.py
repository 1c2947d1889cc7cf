"""What fuses behind a product: bias, GELU, a gate, a residual, the layout of attention's heads."""
