"""What other tools call the devices of a cluster: GPUs by number, processors "cpu"."""

from typing import TypeAlias

from costmodels.cluster import Cluster, Device
from graphs.errors import InputError

Word: TypeAlias = int | str


def device_words(cluster: Cluster) -> tuple[Word, ...]:
    """[n_devices], a GPU's number, "cpu" for the only processor, "cpu:0", "cpu:1", ... where there are several.

    A device on paper counts as a GPU unless its kind or its name begins with "cpu", and takes the next free number.
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
    """The device that a person means: by name, "cuda:0", 0, "0", "cpu" or "cpu:1".

    Raises:
        InputError: if there is none.
    """
    words = device_words(cluster)
    if isinstance(word, str) and word in cluster.index:
        return cluster.index[word]
    known = {str(said): number for number, said in reversed(list(enumerate(words)))}
    known |= {f"cuda:{said}": number for number, said in enumerate(words) if isinstance(said, int)}
    known |= {"cuda": known["0"]} if 0 in words else {}
    if "cpu:0" in known:
        known["cpu"] = known["cpu:0"]
    if "cpu" in known:
        known["cpu:0"] = known["cpu"]
    if isinstance(word, bool) or str(word) not in known:
        there = ", ".join(f"{device.name} ({said})" for device, said in zip(cluster.devices, words, strict=True))
        raise InputError(f"the map names the device {word!r}; cluster '{cluster.name}' has {there}")
    return known[str(word)]


def _is_cpu(device: Device) -> bool:
    named = any(name.lower().startswith("cpu") for name in (device.kind, device.name))
    return device.cuda is None and (bool(device.cores) or named)
