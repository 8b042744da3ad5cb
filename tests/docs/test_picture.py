"""The picture in the README is the one that its script draws."""

import runpy
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def test_the_architecture_is_drawn_anew():
    drawn = runpy.run_path(str(IMAGES / "draw_architecture.py"))["draw"]()

    assert drawn == (IMAGES / "architecture.svg").read_text(encoding="utf-8")
