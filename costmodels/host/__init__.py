"""The cores, kernels and devices of this machine, for calibration and the runtime."""
