"""Predicts the times of unmeasured operators from measured ones."""
