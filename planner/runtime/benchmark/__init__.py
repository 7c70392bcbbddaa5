"""Measure plans on this machine, in turns, and check that their answers are right."""
