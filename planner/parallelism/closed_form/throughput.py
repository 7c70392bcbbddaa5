"""Model FLOPs utilisation: the share of the devices' peak that a step's own FLOP take, nothing recomputed.

Source: Chowdhery et al., PaLM, JMLR 2023, appendix B; scores that a mask hides count, as in Narayanan et al., SC 2021.
"""

from planner.parallelism.closed_form.config import ParallelConfig, TrainingSetting
from planner.parallelism.closed_form.layer_times import LayerTimes


def model_flops_share(setting: TrainingSetting, config: ParallelConfig, step_s: float) -> float:
    """Model FLOPs utilisation of a step on the devices that are used."""
    used = setting.fabric.devices[: config.devices]
    kinds = {device.kind: device for device in used}
    peaks = {
        kind: LayerTimes(setting.network, device, setting.efficiency).flops_per_s for kind, device in kinds.items()
    }
    return setting.network.step_flops(setting.batch) / (step_s * sum(peaks[device.kind] for device in used))
