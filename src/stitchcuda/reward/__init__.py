"""What a Program is worth: marks on a rubric from evidence, and the reward that training maximises."""

from stitchcuda.reward.formula import reward
from stitchcuda.reward.model import (
    DIMENSIONS,
    Dimension,
    Mark,
    Reward,
    RewardSettings,
    RubricScore,
    Skill,
)

__all__ = ["DIMENSIONS", "Dimension", "Mark", "Reward", "RewardSettings", "RubricScore", "Skill", "reward"]
