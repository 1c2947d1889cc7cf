"""The fusion explorer: joints between the steps of a chain, opened and closed by the reader."""
