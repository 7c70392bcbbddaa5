"""What ``planner --version`` prints: the version, and the machine by which measurements are kept."""

import platform
from importlib.metadata import version as version_of

from graphs.errors import InputError


def version() -> str:
    """Two lines; the fingerprint is that of the calibrated host in the cache, so it changes where measuring must."""
    from costmodels.calibrate import host_fingerprint  # late: torch, whose version counts, takes seconds to load
    from costmodels.calibrate.fingerprint import machine_of
    from costmodels.calibrate.host import discover

    program = f"placement-planner {version_of('placement-planner')}, Python {platform.python_version()}"
    try:
        devices = discover()
        machine = machine_of(devices[-1])
        names = ", ".join(device.name for device in devices)
        about = f"{machine.get('model name', 'unknown processor')}, {names}, torch {machine['torch']}"
        return f"{program}\nmachine {host_fingerprint()}: {about}"
    except InputError as error:
        return f"{program}\nmachine unknown: {error}"
