"""The proved best contiguous placement, by dynamic programming over downsets."""
