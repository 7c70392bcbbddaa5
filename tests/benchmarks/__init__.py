"""Scripts that measure. None of them is a test: run them by hand on a quiet machine."""
