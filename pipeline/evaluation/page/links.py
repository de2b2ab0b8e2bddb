"""Players, event and link of the games on the boards, from the tags of the dump."""

import io
import re
from collections.abc import Sequence
from typing import Any

import chess.pgn

from pipeline.dataset.dataset import Dataset
from pipeline.errors import DumpError
from pipeline.evaluation.game_texts import read_texts

LIMIT = 1 << 28
"""Bytes of the decompressed dump that are searched for games, which takes seconds."""
LINK = re.compile(r"https?://[A-Za-z0-9.-]+(/[A-Za-z0-9._~/?#=&%+-]*)?")
TAGS = ("White", "Black", "Event", "Date")
LONGEST = 80

Boards = dict[str, list[dict[str, Any]]]


def add_game_tags(boards: Boards, dataset: Dataset, dumps: Sequence[str]) -> Boards:
    """Return the boards with `link white black event date` of their games where one of the dumps
    has them.

    The dumps were ingested into the dataset. Tags are untrusted text; only http links are kept.
    """
    if not dumps:
        return boards
    games = {row["game"] for rows in boards.values() for row in rows}
    try:
        _, texts = read_texts(dataset, dumps, games, LIMIT)
    except (OSError, DumpError):  # a report works without its dump
        return boards
    tags = {game: _tags(text) for game, text in texts.items()}
    return {
        name: [row | tags.get(row["game"], {}) for row in rows] for name, rows in boards.items()
    }


def _tags(text: bytes) -> dict[str, str]:
    """Return players, event, date and link from a game's tags."""
    headers = chess.pgn.read_headers(io.StringIO(text.decode("utf-8", "replace")))
    if headers is None:
        return {}
    # python-chess keeps the escapes
    values = {name: re.sub(r"\\(.)", r"\1", headers.get(name, "")) for name in TAGS}
    found = {
        name.lower(): value[:LONGEST] for name, value in values.items() if value and value[0] != "?"
    }
    places = (headers.get(name, "") for name in ("Link", "Site"))
    link = next((place for place in places if len(place) <= 200 and LINK.fullmatch(place)), None)
    return found | ({"link": link} if link else {})
