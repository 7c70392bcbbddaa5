"""Sharding of tensor programs on a mesh: programs, the strategies of their operators, and the problem of choosing."""
