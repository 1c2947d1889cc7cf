"""What cards can do: the makers' figures, the card at hand, the roofline of both."""
