"""Problems of other people, with their readers, prices and solvers, for `planner solve`; nothing outside imports them."""
