"""What the questions of several sets share: cases, models of mistakes, numbers asked for."""
