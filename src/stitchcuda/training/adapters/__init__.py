"""The reward for other trainers: TRL, verl and verifiers, all over one mapping and one reward service."""

from stitchcuda.training.adapters.mapping import ASKED, PARTS, item_of_columns, number, parts
from stitchcuda.training.adapters.scorer import Scorer, open_service
from stitchcuda.training.adapters.server import RewardServer
from stitchcuda.training.adapters.trl import trl_reward
from stitchcuda.training.adapters.verl import write_code, write_verl

__all__ = [
    "ASKED",
    "PARTS",
    "RewardServer",
    "Scorer",
    "item_of_columns",
    "number",
    "open_service",
    "parts",
    "trl_reward",
    "write_code",
    "write_verl",
]
