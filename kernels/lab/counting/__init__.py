"""What is known without a GPU: ledgers of bytes, and what kernels compile to."""
