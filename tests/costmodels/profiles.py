"""A profile that has measurements of every sort."""

from costmodels.measured import Measurement, Profile, TrainingMeasurement

RELU = Measurement(2e-6, 0.25, 7)
STEP = TrainingMeasurement(Measurement(3e-6, 0.5, 7), Measurement(6e-6, 0.125, 8))
CONTENDED = {2: {"aten.relu": Measurement(3e-6, 0.125, 7)}, 4: {"aten.relu": Measurement(5e-6, 0.125, 7)}}
TRAINING_CONTENDED = {2: {"aten.relu+grad": TrainingMeasurement(Measurement(4e-6, 0, 3), Measurement(14e-6, 0, 3))}}
PROFILE = Profile(
    "abc123", {"model name": "Z80"}, {"aten.relu": RELU}, {"aten.relu+grad": STEP}, CONTENDED, TRAINING_CONTENDED
)
