"""docs/survival.md: its recipe is one, and its figures follow from it."""

import re
from pathlib import Path

from sordino.learning.models import build
from sordino.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "survival.md").read_text()


def test_the_ledgers_of_the_page_count_every_round_of_its_recipe_once():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    recipe = Recipe.from_toml(text)
    values = sum(p.numel() for p in build(recipe.model.name, input_shape=(1, 8, 8), classes=10).parameters())
    spent = values * recipe.clients.epsilon * recipe.rounds.count
    assert f"Spent       {spent:,.0f} in {recipe.rounds.count} releases" in PAGE
