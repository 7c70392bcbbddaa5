"""Bytes: what lives with operators, what is saved for the backward pass, what is on its way."""
