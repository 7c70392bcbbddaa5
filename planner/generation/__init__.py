"""Generating text on paper: whether a language model fits, how it is divided, and how fast it will be."""
