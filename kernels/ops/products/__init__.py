"""Matrix products, and what is fused around them."""
