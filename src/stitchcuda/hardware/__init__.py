"""The device a task runs on: facts and measured ceilings."""

from stitchcuda.hardware.model import Ceilings, Device

__all__ = ["Ceilings", "Device"]
