"""Rows of tables as games of PGN, recognised by the names of their columns: CSV and Parquet alike.

    PuzzleId, FEN, Moves, Rating, Themes   the solver's moves are the labels, the first is not
    fen or position, best or bestmove ...  a position a row; the first of several moves is the label
    movetext and tags                      Lichess's published games
    moves, winner, white_rating ...        Kaggle's table of Lichess's games: SAN without numbers

A column's name is compared without case, spaces and underscores. Rating and themes of a puzzle go
to `puzzle_rating` and `puzzle_themes` of `games.parquet`, its id to `site`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.dumps.formats.text import FEN, broken_row, clean, position_row, write_tags
from pipeline.errors import DumpError
from pipeline.pgn import tags

UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
SAN = re.compile(r"O-O(?:-O)?|[NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](?:=?[NBRQnbrq])?")
PUZZLE = (
    *("PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation"),
    *("Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags"),
)
"""Columns of Lichess's puzzles in the order of its file."""
FEN_NAMES = ("fen", "position", "fenoriginal", "epd")
BEST_NAMES = ("bestuci", "best", "bestmove", "bm", "move", "uci", "san")
MOVES_NAMES = ("movetext", "moves", "an")
LICHESS_TAGS = tuple(name for name in tags.TAGS if not name.startswith(("Fianchetto", "Puzzle")))
OTHER_NAMES = {
    "Site": ("id", "gameid"),
    "White": ("whiteid", "whiteusername", "whiteplayer"),
    "Black": ("blackid", "blackusername", "blackplayer"),
    "WhiteElo": ("whiterating",),
    "BlackElo": ("blackrating",),
    "ECO": ("openingeco",),
}
"""Other names of tags. TimeControl has none: only under the tag's own name is its unit certain."""
KAGGLE = ("rated", "winner", "victorystatus", "incrementcode")
RESULTS = {"white": "1-0", "black": "0-1", "draw": "1/2-1/2"}
TERMINATIONS = {"outoftime": "Time forfeit", "mate": "Normal", "resign": "Normal", "draw": "Normal"}
_TAG = re.compile(r'\s*\[([A-Za-z]\w*)\s+"([^"\r\n]*)"\]', re.ASCII)
_LINE_COMMENT = re.compile(r"(\{[^}]*\}?)|;[^\r\n]*|(?<![^\r\n])%[^\r\n]*")
LONGEST_MOVETEXT = 1 << 20
"""Bytes of a cell of movetext; a longer one is dropped, as a game without moves."""
READABLE = (
    f"games have a column {' or '.join(MOVES_NAMES[:2])}, puzzles {', '.join(PUZZLE[:3])}, "
    f"positions {' or '.join(FEN_NAMES[:2])} and one of best, bestmove, best_uci, bm, move, uci, "
    "san, evaluations fen, cp, mate, move; a column of PGN belongs into a file of its own"
)

Row = Mapping[str, str]
"""Values by column; "" for null."""


class Table(NamedTuple):
    """A recognised table."""

    name: str
    columns: dict[str, int]
    """The columns that are read, with their places."""
    write: Callable[[str, Row], str]
    """Turns a name for the row (`line-17`) and its values into a game."""


def recognize_columns(header: Sequence[str]) -> Table | None:
    """Return what a table with these columns is; None for one without known columns.

    Raises DumpError, without the file's name, for a table that lacks a column.
    """
    places: dict[str, int] = {}
    for at, name in enumerate(header):
        places.setdefault(plain_name(name), at)
    fen = next((name for name in FEN_NAMES if name in places), "")
    best = next((name for name in BEST_NAMES if name in places), "")
    moves = next((name for name in MOVES_NAMES if name in places), "")
    if "puzzleid" in places or (fen == "fen" and moves == "moves" and "themes" in places):
        if missing := [name for name in PUZZLE[1:3] if name.lower() not in places]:
            raise DumpError(f"begins like Lichess's puzzles but has no column {', '.join(missing)}")
        return _puzzles(places)
    if moves and (moves == "movetext" or not fen):
        return _games(header, places, moves)
    if fen and best:
        return _best_moves(places, fen, best)
    if fen or "pgn" in places:
        raise DumpError(
            f"is a table of {', '.join(header)[:200]}, which cannot be read: {READABLE}"
        )
    return None


def plain_name(name: str) -> str:
    """Return a column's name without case, spaces and underscores."""
    return re.sub(r"[\s_]", "", name).lower()


def guess_header(fields: Sequence[str]) -> list[str]:
    """Return names for the columns of a table without names by its first row; [] for other text."""
    at = next((at for at, field in enumerate(fields[:-1]) if FEN.fullmatch(field)), -1)
    moves = fields[at + 1].split() if at >= 0 else []
    if not moves or not all(UCI.fullmatch(move) or SAN.fullmatch(move) for move in moves):
        return []
    if len(moves) > 1 and at == 0:  # the first may be the opponent's, as in a puzzle, or not
        raise DumpError(
            "begins with a FEN and moves: put a line of names above it, as PuzzleId,FEN,Moves or "
            "fen,best"
        )
    names = [*PUZZLE] if len(moves) > 1 else ["", "FEN", "best"]
    names = [""] * (at - 1) + names if at else names[1:]
    return (names + [""] * len(fields))[: len(fields)]


def _puzzles(places: dict[str, int]) -> Table:
    wanted = [name for name in map(str.lower, PUZZLE) if name in places]

    def write(place: str, row: Row) -> str:
        event = "Lichess puzzle"
        if not all(UCI.fullmatch(move) for move in row["moves"].split()):
            return broken_row(event=event, site=place)
        rating = row.get("rating", "")
        labels = {
            "PuzzleRating": rating if rating.isascii() and rating.isdigit() else "",
            "PuzzleThemes": row.get("themes", ""),
        }
        site = clean(row.get("puzzleid", "")).replace("/", "-") or place
        return position_row(
            row["fen"], row["moves"], event=event, site=site, first_label=1, tags=labels
        )

    return Table("Lichess puzzles", {name: places[name] for name in wanted}, write)


def _best_moves(places: dict[str, int], fen: str, best: str) -> Table:
    def write(place: str, row: Row) -> str:
        return position_row(row[fen], find_first_move(row[best]), event="best move", site=place)

    return Table("best moves", {name: places[name] for name in (fen, best)}, write)


def _games(header: Sequence[str], places: dict[str, int], moves: str) -> Table:
    columns = {name: at for at, name in enumerate(header) if name in LICHESS_TAGS}
    for tag, names in OTHER_NAMES.items():
        found = [places[name] for name in (tag.lower(), *names) if name in places]
        columns |= {tag: found[0]} if found and tag not in columns else {}
    columns |= {name: places[name] for name in (*KAGGLE, moves) if name in places}

    def write(place: str, row: Row) -> str:
        return _write_game(place, row, row[moves])

    return Table("games", columns, write)


def _write_game(place: str, row: Row, moves: str) -> str:
    """Write a row of a table of games as a dump has it; tags before the moves fill what no column
    gives.
    """
    inside, movetext = _split_tags(moves) if len(moves) <= LONGEST_MOVETEXT else ({}, "")
    known = {name: row[name] for name in LICHESS_TAGS if row.get(name)}
    for date in ("Date", "UTCDate"):
        if date in known:
            known[date] = known[date][:10].replace("-", ".")
    rated = row.get("rated", "").lower()
    control = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", row.get("incrementcode", ""))
    derived = {
        "Event": "" if not rated else "Rated game" if rated in ("true", "1") else "Casual game",
        "Result": RESULTS.get(row.get("winner", "").lower(), ""),
        "Termination": TERMINATIONS.get(row.get("victorystatus", ""), ""),
        # minutes and seconds
        "TimeControl": f"{int(control[1]) * 60}+{control[2]}" if control else "",
    }
    derived = {name: value for name, value in derived.items() if value}
    every = {"Event": "?", "Site": place, "Result": ""} | inside | derived | known
    # A comment before it keeps hostile movetext from beginning a tag; a blank line behind it closes
    # what it left open.
    return f"{write_tags(every)}\n{{}} {movetext} {every['Result']}\n\n"


def _split_tags(cell: str) -> tuple[dict[str, str], str]:
    """Return the tags that a cell of PGN begins with, and its moves on one line, without what
    comments to the end of a line hold.
    """
    found, at = {}, 0
    while tag := _TAG.match(cell, at):
        if not tag[1].lower().startswith(("fianchetto", "puzzle")):
            found[tag[1]] = tag[2]
        at = tag.end()
    return found, " ".join(_LINE_COMMENT.sub(lambda part: part[1] or " ", cell[at:]).split())


def find_first_move(field: str) -> str:
    """Return the first move in a field, UCI or SAN, "" if there is none."""
    found = UCI.search(field) or SAN.search(field)
    return found[0] if found else ""
