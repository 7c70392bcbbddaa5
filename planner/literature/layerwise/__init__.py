"""Settings of equal layers, and what a step costs under a plan (Galvatron)."""
