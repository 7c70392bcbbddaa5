"""What this machine is: its cores, kernels and devices. Calibration and the runtime both stand on it."""
