"""From a model to a plan: calibrating, solving, and choosing among divisions of the CPU by running."""
