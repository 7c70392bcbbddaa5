"""What a plan takes on this machine, measured in turns, and whether its answers are right."""
