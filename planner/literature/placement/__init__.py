"""Placement problems in the public format of Tarnawski et al. (NeurIPS 2020)."""
