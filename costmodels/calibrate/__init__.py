"""Measures this host's devices and links, and the operators of a program on a device. Imports torch."""

from costmodels.calibrate.cluster import Host, calibrate_host, host_divisions, host_fingerprint, with_kernels
from costmodels.calibrate.ops import MeasurementEffort, profile_contended, profile_program

__all__ = ["Host", "MeasurementEffort", "calibrate_host", "host_divisions", "host_fingerprint", "profile_contended"]
__all__ += ["profile_program", "with_kernels"]
