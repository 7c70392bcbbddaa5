"""Local search for throughput and cost, on one level and on many."""
