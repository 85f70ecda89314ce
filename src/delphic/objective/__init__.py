"""What does a step maximise? Objectives as rows of choices, on arrays alone."""

from delphic.objective.aggregate import Totals, token_weights
from delphic.objective.coefficients import Coefficients, coefficients
from delphic.objective.objective import Objective
from delphic.objective.prepare import Prepared, StepInputs, group_slots, prepare
from delphic.objective.presets import PRESETS, Preset, build

__all__ = [
    "PRESETS",
    "Coefficients",
    "Objective",
    "Prepared",
    "Preset",
    "StepInputs",
    "Totals",
    "build",
    "coefficients",
    "group_slots",
    "prepare",
    "token_weights",
]
