"""What a Program is worth: marks on a rubric from evidence, the reward, and a service that scores many."""

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
from stitchcuda.reward.score import Item, RewardOutcome, Unscored
from stitchcuda.reward.service import RewardService, ServiceSettings
from stitchcuda.reward.service_blocking import BlockingService

__all__ = [
    "DIMENSIONS",
    "BlockingService",
    "Dimension",
    "Item",
    "Mark",
    "Reward",
    "RewardOutcome",
    "RewardService",
    "RewardSettings",
    "RubricScore",
    "ServiceSettings",
    "Skill",
    "Unscored",
    "reward",
]
