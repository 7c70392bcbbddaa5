"""Weights and states in files: names, tensor files and a shard for each device."""
