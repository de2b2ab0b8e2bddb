"""Convert rows of CSV and Parquet tables to PGN games; the column names determine the kind.

    PuzzleId, FEN, Moves, Rating, Themes   labels: the solver's moves (the first is the opponent's)
    fen or position, best or bestmove ...  one position per row; the label is the first move
    movetext and tags                      Lichess's published games
    moves, winner, white_rating ...        Kaggle's table of Lichess's games: SAN without numbers

Column names are compared without case, spaces and underscores. The rating and themes of a puzzle
are stored in `puzzle_rating` and `puzzle_themes` of `games.parquet`, and its id in `site`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.dumps.formats.text import FEN, clean, write_broken_row, write_position_row, write_tags
from pipeline.errors import DumpError
from pipeline.pgn import tags

UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
SAN = re.compile(r"O-O(?:-O)?|[NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](?:=?[NBRQnbrq])?")
PUZZLE = (
    *("PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation"),
    *("Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags"),
)
"""Columns of Lichess's puzzles, in file order."""
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
"""Alternative column names of tags. TimeControl has none, since its unit would be uncertain."""
KAGGLE = ("rated", "winner", "victorystatus", "incrementcode")
RESULTS = {"white": "1-0", "black": "0-1", "draw": "1/2-1/2"}
TERMINATIONS = {"outoftime": "Time forfeit", "mate": "Normal", "resign": "Normal", "draw": "Normal"}
_TAG = re.compile(r'\s*\[([A-Za-z]\w*)\s+"([^"\r\n]*)"\]', re.ASCII)
_LINE_COMMENT = re.compile(r"(\{[^}]*\}?)|;[^\r\n]*|(?<![^\r\n])%[^\r\n]*")
MAX_MOVETEXT_BYTES = 1 << 20
"""Maximum bytes of movetext in a cell; a longer one is dropped as a game without moves."""
READABLE = (
    f"games have a column {' or '.join(MOVES_NAMES[:2])}, puzzles {', '.join(PUZZLE[:3])}, "
    f"positions {' or '.join(FEN_NAMES[:2])} and one of best, bestmove, best_uci, bm, move, uci, "
    "san, evaluations fen, cp, mate, move; save a column of PGN as a file of its own"
)

Row = Mapping[str, str]
"""Values of a row by column, "" for null."""


class Table(NamedTuple):
    """A table of a known kind."""

    name: str
    columns: dict[str, int]
    """Columns to read, with their indices."""
    format_row: Callable[[str, Row], str]
    """Convert a row, given its name (`line-17`) and values, to a game."""


def recognize_columns(header: Sequence[str]) -> Table | None:
    """Return the table kind with these columns, None if there is no such kind.

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
            raise DumpError(f"looks like Lichess's puzzles but has no column {', '.join(missing)}")
        return _make_puzzle_table(places)
    if moves and (moves == "movetext" or not fen):
        return _make_game_table(header, places, moves)
    if fen and best:
        return _make_best_move_table(places, fen, best)
    if fen or "pgn" in places:
        raise DumpError(
            f"is a table with the columns {', '.join(header)[:200]}, which cannot be read: "
            f"{READABLE}"
        )
    return None


def plain_name(name: str) -> str:
    """Return a column's name in lower case, without spaces and underscores."""
    return re.sub(r"[\s_]", "", name).lower()


def guess_header(fields: Sequence[str]) -> list[str]:
    """Guess the column names of a table without a header from its first row; [] for other text."""
    at = next((at for at, field in enumerate(fields[:-1]) if FEN.fullmatch(field)), -1)
    moves = fields[at + 1].split() if at >= 0 else []
    if not moves or not all(UCI.fullmatch(move) or SAN.fullmatch(move) for move in moves):
        return []
    if len(moves) > 1 and at == 0:  # the first move may be the opponent's
        raise DumpError(
            "begins with a FEN and moves: add a header line, such as PuzzleId,FEN,Moves or fen,best"
        )
    names = [*PUZZLE] if len(moves) > 1 else ["", "FEN", "best"]
    names = [""] * (at - 1) + names if at else names[1:]
    return (names + [""] * len(fields))[: len(fields)]


def _make_puzzle_table(places: dict[str, int]) -> Table:
    wanted = [name for name in map(str.lower, PUZZLE) if name in places]

    def format_row(place: str, row: Row) -> str:
        event = "Lichess puzzle"
        if not all(UCI.fullmatch(move) for move in row["moves"].split()):
            return write_broken_row(event=event, site=place)
        rating = row.get("rating", "")
        labels = {
            "PuzzleRating": rating if rating.isascii() and rating.isdigit() else "",
            "PuzzleThemes": row.get("themes", ""),
        }
        site = clean(row.get("puzzleid", "")).replace("/", "-") or place
        return write_position_row(
            row["fen"], row["moves"], event=event, site=site, first_label=1, tags=labels
        )

    return Table("Lichess puzzles", {name: places[name] for name in wanted}, format_row)


def _make_best_move_table(places: dict[str, int], fen: str, best: str) -> Table:
    def format_row(place: str, row: Row) -> str:
        return write_position_row(
            row[fen], find_first_move(row[best]), event="best move", site=place
        )

    return Table("best moves", {name: places[name] for name in (fen, best)}, format_row)


def _make_game_table(header: Sequence[str], places: dict[str, int], moves: str) -> Table:
    columns = {name: at for at, name in enumerate(header) if name in LICHESS_TAGS}
    for tag, names in OTHER_NAMES.items():
        found = [places[name] for name in (tag.lower(), *names) if name in places]
        columns |= {tag: found[0]} if found and tag not in columns else {}
    columns |= {name: places[name] for name in (*KAGGLE, moves) if name in places}

    def format_row(place: str, row: Row) -> str:
        return _format_game(place, row, row[moves])

    return Table("games", columns, format_row)


def _format_game(place: str, row: Row, moves: str) -> str:
    """Convert a row of a table of games to PGN; tags before the moves replace missing columns."""
    inside, movetext = _split_tags(moves) if len(moves) <= MAX_MOVETEXT_BYTES else ({}, "")
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
    # The empty comment keeps hostile movetext from starting a tag. The blank line at the end closes
    # unclosed comments.
    return f"{write_tags(every)}\n{{}} {movetext} {every['Result']}\n\n"


def _split_tags(cell: str) -> tuple[dict[str, str], str]:
    """Split a cell of PGN into its tags and its moves on one line, without `;` comments."""
    found, at = {}, 0
    while tag := _TAG.match(cell, at):
        if not tag[1].lower().startswith(("fianchetto", "puzzle")):
            found[tag[1]] = tag[2]
        at = tag.end()
    return found, " ".join(_LINE_COMMENT.sub(lambda part: part[1] or " ", cell[at:]).split())


def find_first_move(field: str) -> str:
    """Return the first move (UCI or SAN) of a field, "" if there is none."""
    found = UCI.search(field) or SAN.search(field)
    return found[0] if found else ""
