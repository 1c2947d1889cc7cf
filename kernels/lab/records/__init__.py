"""What was recorded: rows of data, where they come from, and the page that tells them."""
