"""Names of modules and devices in the words of other tools."""

from collections.abc import Collection, Sequence
from typing import TypeAlias

from costmodels.cluster.cluster import Cluster, Device
from graphs.common.errors import InputError
from planner.plans.plan import Plan


def kept_whole(module: str) -> str:
    """Return the way out for a module on several devices: --whole for it and for the modules numbered like it."""
    parts = ["*" if part.isdigit() else part for part in module.split(".")]
    return f"plan with --whole '{'.'.join(parts)}'"


def device_names(plan: Plan, numbers: Collection[int]) -> str:
    """Return the devices of a plan in words."""
    return listed([plan.cluster.devices[number].name for number in sorted(numbers)])


def listed(names: Sequence[str]) -> str:
    """Return the names in words: "cpu0 and cpu1", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


Word: TypeAlias = int | str


def device_words(cluster: Cluster) -> tuple[Word, ...]:
    """Return [n_devices], the number of a GPU, "cpu" for the only processor, "cpu:0", "cpu:1", ... for several.

    A device on paper counts as a GPU unless its kind or its name begins with "cpu", and gets the next free number.
    """
    processors = [device.name for device in cluster.devices if _is_cpu(device)]
    taken = {device.cuda for device in cluster.devices if device.cuda is not None}
    free = (number for number in range(len(cluster.devices)) if number not in taken)
    words: list[Word] = []
    for device in cluster.devices:
        if device.cuda is not None:
            words.append(device.cuda)
        elif _is_cpu(device):
            words.append("cpu" if len(processors) == 1 else f"cpu:{processors.index(device.name)}")
        else:
            words.append(next(free))
    return tuple(words)


def device_called(word: object, cluster: Cluster) -> int:
    """Return the number of the device that a map calls by name, "cuda:0", 0, "0", "cpu" or "cpu:1".

    Raise InputError if there is no such device.
    """
    words = device_words(cluster)
    if isinstance(word, str) and word in cluster.index:
        return cluster.index[word]
    numbers = {str(own): number for number, own in reversed(list(enumerate(words)))}
    numbers |= {f"cuda:{own}": number for number, own in enumerate(words) if isinstance(own, int)}
    for short, long in (("cuda", "cuda:0"), ("cpu", "cpu:0")):
        if short in numbers or long in numbers:
            numbers[short] = numbers[long] = numbers.get(long, numbers.get(short, 0))
    if isinstance(word, bool) or str(word) not in numbers:
        names = ", ".join(f"{device.name} ({own})" for device, own in zip(cluster.devices, words, strict=True))
        raise InputError(f"the map names the device {word!r}; cluster '{cluster.name}' has {names}")
    return numbers[str(word)]


def _is_cpu(device: Device) -> bool:
    named = any(name.lower().startswith("cpu") for name in (device.kind, device.name))
    return device.cuda is None and (bool(device.cores) or named)
