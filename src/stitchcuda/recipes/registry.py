"""Which recipes there are: every concrete ``Recipe`` class in a module of this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from stitchcuda import recipes
from stitchcuda.recipes.base import Recipe


@cache
def all_recipes() -> tuple[Recipe, ...]:
    """One instance of each recipe, in the order in which they run."""
    found: list[Recipe] = []
    for module_info in pkgutil.iter_modules(recipes.__path__):
        module = importlib.import_module(f"{recipes.__name__}.{module_info.name}")
        for value in vars(module).values():
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and issubclass(value, Recipe) and not inspect.isabstract(value):
                found.append(value())
    return tuple(sorted(found, key=lambda recipe: (recipe.order, recipe.name)))
