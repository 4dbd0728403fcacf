"""How often the preregistered test confirms what is not there, for seeds that differ more or less:
`python benchmarks/coder_experiment/errors.py`. Made-up rewards, the real statistics; about one minute of a core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

COMPOSITIONS, DRAWS, TRIALS = 200, 400, 400
SPREAD = 0.6
"""Standard deviation of a composition's mean reward around its model's, what all models share left out."""


def rate(between_seeds: float, seeds: tuple[int, int], difference: float = 0.0) -> float:
    """Share of trials with one-sided p < 0.05, before Holm, for two arms of so many seeds whose means differ by
    ``difference``."""
    from coder_experiment.analyse import Draws, Sums

    made = np.random.default_rng(1)
    confirmed = 0
    for trial in range(TRIALS):
        models = {}
        for name, count, mean in zip(("first", "second"), seeds, (difference, 0.0), strict=True):
            models[name] = [
                Sums(
                    {
                        "reward+": made.normal(mean + made.normal(0, between_seeds), SPREAD, COMPOSITIONS),
                        "reward/": np.ones(COMPOSITIONS),
                    }
                )
                for _ in range(count)
            ]
        draws = Draws(models, COMPOSITIONS, seed=trial, draws=DRAWS)
        sample = draws.sample("first", "reward") - draws.sample("second", "reward")
        confirmed += (int(np.sum(~(sample > 0))) + 1) / (DRAWS + 1) < 0.05
    return confirmed / TRIALS


def main() -> None:
    """Print the table."""
    print("| seeds | spread of seeds | no difference | one of 0.2 |\n|---|---|---|---|")
    for seeds in ((2, 2), (2, 1), (3, 3)):
        for between in (0.0, 0.05, 0.15):
            print(
                f"| {seeds[0]}, {seeds[1]} | {between} | {rate(between, seeds):.3f} | {rate(between, seeds, 0.2):.3f} |"
            )


if __name__ == "__main__":
    main()
