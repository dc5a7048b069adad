"""docs/architecture.md describes the current modules."""

from __future__ import annotations

from tools import house_page


def test_every_room_is_on_the_page() -> None:
    assert house_page.PAGE.read_text() == house_page.page(), "run `make pages`"


def test_every_module_says_what_it_is() -> None:
    silent = [
        path
        for folder in house_page.folders()
        for path in (house_page.ROOT / folder).glob("*.py")
        if not house_page.summary_of(path)
    ]
    assert len(house_page.folders()) > 20
    assert silent == []
