"""Any network: its layers, their tensor-parallel styles, and the sweep over schedules and shapes."""
