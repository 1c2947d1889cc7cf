"""Matrix products: `linear`, forward and backward."""
