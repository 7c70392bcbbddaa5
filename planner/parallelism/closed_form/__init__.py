"""A transformer whose layers are equal: the shapes of a step, their prices, the search for the best."""
