"""What goes into a product: a norm of its rows before it, in the same launch or not."""
