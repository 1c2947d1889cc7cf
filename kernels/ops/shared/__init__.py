"""What several operation families use: arguments, rows, operators, peers."""
