"""Bring the board's page into one state after the other, for pictures."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.pipeline.board.games import HANGS, MATED, SHORT, game

if TYPE_CHECKING:
    from playwright.sync_api import Page


def open_states(page: "Page", games: str = "", name: str = "me") -> Iterator[str]:
    """Yield the name of each state of a page once it is shown; `games` are those of `name`."""
    games = games or game(HANGS, name, "you", "0-1") + game(MATED, "you", name, "1-0") * 4
    page.check("#bar")
    page.fill("#typed-move", "e4")
    page.press("#typed-move", "Enter")
    page.locator("#moves button").nth(1).wait_for()
    yield "play"
    page.click("#new")
    yield "question"
    page.click("#sure [value=no]")
    page.click("#tab-ask")
    page.locator("#lines tbody tr").first.wait_for()
    yield "ask"
    page.click("#tab-review")
    page.fill("#pgn", SHORT)
    page.click("#review-form .main")
    page.locator("#reviewed ol").wait_for()
    yield "review"
    page.fill("#pgn", games)
    page.fill("#player-name", name)
    page.click("#review-form .main")
    page.locator("#stop").wait_for(state="hidden")
    page.locator("td summary").first.click()
    page.locator("td li button").first.click()
    page.locator("#board svg path.c1").wait_for()
    yield "games"
