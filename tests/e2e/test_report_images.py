"""The pictures of the README can be rendered from the programs as they are."""

from pathlib import Path

from e2e.images import render

PNG = b"\x89PNG"
KEPT = Path(__file__).parents[2] / "docs" / "images"


def test_the_pictures_are_rendered(tmp_path: Path) -> None:
    """Each picture of ``docs/images`` is rendered anew, and is of the size of the kept one."""
    for picture in render(tmp_path):
        assert picture.read_bytes()[:4] == PNG
        assert picture.read_bytes()[16:24] == (KEPT / picture.name).read_bytes()[16:24]
