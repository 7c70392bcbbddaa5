"""Measuring: this host's devices and links, and every operator of a program on one of them. Imports torch."""

from costmodels.calibrate.cluster import calibrate_host
from costmodels.calibrate.ops import Effort, profile_program

__all__ = ["Effort", "calibrate_host", "profile_program"]
