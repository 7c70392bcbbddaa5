"""The fingerprint of the hardware and software on which measurements depend."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from costmodels.host.affinity import Processor, torch_device_of
from graphs.kernels.kernels import VERSION as KERNELS

CPUINFO = Path("/proc/cpuinfo")


def machine_of(device: Processor) -> dict[str, str]:
    """A description of a device of this host and its software.

    Raises:
        InputError: if this host does not have the device.
    """
    torch_device = torch_device_of(device)
    software = {"torch": str(torch.__version__)}
    if torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(torch_device)
        hardware = {"gpu": properties.name, "bytes": str(properties.total_memory), "cuda": str(torch.version.cuda)}
        precision = torch._C._get_fp32_precision_getter  # TensorFloat-32 is eight times as quick
        software |= {f"float32 {kind}": precision("cuda", kind) for kind in ("matmul", "conv", "rnn")}
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch has no types here
        return hardware | software | {"cudnn": str(cudnn)}
    hardware = processor(CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else "")
    instructions = torch.backends.cpu.get_cpu_capability()
    quick = "quick " if device.kernels == "quick" else ""
    software |= {"instructions": instructions, "kernels": f"{quick}{KERNELS}"}
    return hardware | {"kind": device.kind, "cores": str(len(device.cores))} | software


def processor(cpuinfo: str) -> dict[str, str]:
    """The first processor of /proc/cpuinfo, or Python's name of the processor if the file has none."""
    first = cpuinfo.split("\n\n")[0].splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    names = ("model name", "cpu family", "model", "stepping")
    known = {key: fields[key] for key in names if key in fields}
    return known or {"model name": platform.processor() or platform.machine()}


def fingerprint_of(machine: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits for a description."""
    return hashlib.sha256(json.dumps(sorted(machine.items())).encode()).hexdigest()[:12]
