"""The recipes as a Mind: Planner, Coder and Verifier that need no language model and cost nothing."""

from __future__ import annotations

from stitchcuda.agents.roles import Mind
from stitchcuda.recipes.coder import RecipeCoder
from stitchcuda.recipes.planner import RecipePlanner
from stitchcuda.recipes.verifier import RecipeVerifier


def mind() -> Mind:
    """The default mind, named 'recipes'. Importing torch waits for the first plan."""
    return Mind(name="recipes", planner=RecipePlanner(), coder=RecipeCoder(), verifier=RecipeVerifier(), paid=False)
