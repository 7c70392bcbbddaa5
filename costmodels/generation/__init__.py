"""Costs of generating text: the work of a pass of a language model, and the seconds that devices take for it."""
