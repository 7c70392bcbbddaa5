"""Problems of the literature, with their readers, prices and solvers, for `planner solve` alone."""
