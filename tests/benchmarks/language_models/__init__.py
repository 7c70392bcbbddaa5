"""Times of generation that others measured, compared with those predicted."""
