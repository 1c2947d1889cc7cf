"""The figures of the book, and its explorers."""
