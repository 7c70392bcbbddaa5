"""Stages with degrees of their own: the search and its bound."""
