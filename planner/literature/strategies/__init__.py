"""Programs of tensor operators and the ASPLOS 2025 contest: one strategy a node at the least cost."""
