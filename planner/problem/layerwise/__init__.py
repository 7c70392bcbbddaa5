"""Layer-wise hybrid parallelism: settings, what a step costs under a plan, and the plans' format."""
