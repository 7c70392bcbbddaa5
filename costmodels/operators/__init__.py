"""What the kinds of operators cost by formula: FLOP, bytes, views; their keys; the machine's pace."""
