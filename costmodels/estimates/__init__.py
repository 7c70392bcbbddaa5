"""Estimates of operators' times on devices that nobody measured: what kinds of operators reach on kinds of devices.

autocast · kernels · parameters · model
"""
