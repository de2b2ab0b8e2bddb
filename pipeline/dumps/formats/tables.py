"""Convert rows of CSV and Parquet tables to PGN games; the column names determine the kind.

    PuzzleId, FEN, Moves, Rating, Themes   labels: the solver's moves (the first is the opponent's)
    fen or position, best or bestmove ...  one position per row; the label is the first move
    movetext and tags                      Lichess's published games
    moves, winner, white_rating ...        Kaggle's table of Lichess's games: SAN without numbers

Case, spaces and underscores in column names are ignored. A puzzle's id is stored in `site` of
`games.parquet`, its rating and themes in `puzzle_rating` and `puzzle_themes`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.dumps.formats.text import (
    FEN_PATTERN,
    clean_value,
    format_broken_row,
    format_position_game,
    format_tags,
)
from pipeline.errors import DumpError
from pipeline.pgn import tags

UCI_PATTERN = re.compile(r"[a-h][1-8][a-h][1-8][nbrqNBRQ]?")
SAN_PATTERN = re.compile(r"O-O(?:-O)?|[NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](?:=?[NBRQnbrq])?")
PUZZLE_COLUMNS = (
    *("PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation"),
    *("Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags"),
)
"""Columns of Lichess's puzzles, in file order."""
FEN_COLUMN_NAMES = ("fen", "position", "fenoriginal", "epd")
BEST_COLUMN_NAMES = ("bestuci", "best", "bestmove", "bm", "move", "uci", "san")
MOVES_COLUMN_NAMES = ("movetext", "moves", "an")
COLUMN_TAGS = tuple(name for name in tags.TAGS if not name.startswith(("Fianchetto", "Puzzle")))
"""Tags that a column of a table of games may hold."""
EXACT_COLUMN_TAGS = ("TimeControl", "FEN", "SetUp", "Variant")
"""Tags that are read only from columns of exactly this name, since others write another thing under
similar names: `time_control` in minutes, `fen` of the last position."""
TAG_COLUMN_NAMES = {
    "Site": ("id", "gameid"),
    "White": ("whiteid", "whiteusername", "whiteplayer"),
    "Black": ("blackid", "blackusername", "blackplayer"),
    "WhiteElo": ("whiterating",),
    "BlackElo": ("blackrating",),
    "ECO": ("openingeco",),
}
"""Other names of the columns of tags."""
KAGGLE_COLUMNS = ("rated", "winner", "victorystatus", "incrementcode")
RESULTS = ("1-0", "0-1", "1/2-1/2", "*")
RESULT_OF_WINNER = {"white": "1-0", "black": "0-1", "draw": "1/2-1/2"}
TERMINATION_OF_STATUS = dict.fromkeys(("mate", "resign", "draw"), "Normal") | {
    "outoftime": "Time forfeit"
}
_TAG_PATTERN = re.compile(r'\s*\[([A-Za-z]\w*)\s+"([^"\r\n]*)"\]', re.ASCII)
_COMMENT_PATTERN = re.compile(r"(\{[^}]*\}?)|;[^\r\n]*|(?<![^\r\n])%[^\r\n]*")
MAX_MOVETEXT_BYTES = 1 << 20
"""Maximum bytes of movetext in a cell; a longer one is dropped as a game without moves."""
READABLE_TABLES = (
    f"games have a column {' or '.join(MOVES_COLUMN_NAMES[:2])}, puzzles "
    f"{', '.join(PUZZLE_COLUMNS[:3])}, positions {' or '.join(FEN_COLUMN_NAMES[:2])} and one of "
    "best, bestmove, best_uci, bm, move, uci, san, evaluations fen, cp, mate, move; save a column "
    "of PGN as a file of its own"
)
"""End of the error messages for tables that cannot be read."""

Row = Mapping[str, str]
"""Values of a row by column, "" for null."""


class Table(NamedTuple):
    """How to read a kind of table."""

    name: str
    columns: dict[str, int]
    """Index of each column to read, by its name in `Row`."""
    format_row: Callable[[str, Row], str]
    """Convert a row, given its place (`line-17`) and values, to a game."""


def recognize_columns(header: Sequence[str]) -> Table | None:
    """Return how to read a table with these columns, None if no kind of table has them.

    Raises DumpError, without the file's name, for a table that lacks a column.
    """
    index: dict[str, int] = {}
    for at, name in enumerate(header):
        index.setdefault(normalize_name(name), at)
    fen = next((name for name in FEN_COLUMN_NAMES if name in index), "")
    best = next((name for name in BEST_COLUMN_NAMES if name in index), "")
    moves = next((name for name in MOVES_COLUMN_NAMES if name in index), "")
    if "puzzleid" in index or (fen == "fen" and moves == "moves" and "themes" in index):
        if missing := [name for name in PUZZLE_COLUMNS[1:3] if name.lower() not in index]:
            raise DumpError(f"looks like Lichess's puzzles but has no column {', '.join(missing)}")
        return _make_puzzle_table(index)
    if moves and (moves == "movetext" or not fen):
        return _make_game_table(header, index, moves)
    if fen and best:
        return _make_best_move_table(index, fen, best)
    if fen or "pgn" in index:
        raise DumpError(
            f"is a table with the columns {', '.join(header)[:200]}, which cannot be read: "
            f"{READABLE_TABLES}"
        )
    return None


def normalize_name(name: str) -> str:
    """Return a column's name in lower case, without spaces and underscores."""
    return re.sub(r"[\s_]", "", name).lower()


def guess_header(fields: Sequence[str]) -> list[str]:
    """Guess the column names of a table without a header from its first row; [] for other text.

    Raises DumpError if a FEN and several moves do not show whose move the first one is.
    """
    at = next((at for at, field in enumerate(fields[:-1]) if FEN_PATTERN.fullmatch(field)), -1)
    moves = fields[at + 1].split() if at >= 0 else []
    if not moves or not all(map(_is_move, moves)):
        return []
    if len(moves) > 1 and at == 0:  # it is unknown whether the first move is the opponent's
        raise DumpError(
            "begins with a FEN and moves: add a header line, such as PuzzleId,FEN,Moves or fen,best"
        )
    names = [*PUZZLE_COLUMNS] if len(moves) > 1 else ["", "FEN", "best"]
    names = [""] * (at - 1) + names if at else names[1:]
    return (names + [""] * len(fields))[: len(fields)]


def _is_move(word: str) -> bool:
    return bool(UCI_PATTERN.fullmatch(word) or SAN_PATTERN.fullmatch(word))


def _make_puzzle_table(index: dict[str, int]) -> Table:
    names = [name for name in map(str.lower, PUZZLE_COLUMNS) if name in index]

    def format_row(place: str, row: Row) -> str:
        event = "Lichess puzzle"
        if not all(UCI_PATTERN.fullmatch(move) for move in row["moves"].split()):
            return format_broken_row(event=event, site=place)
        rating = row.get("rating", "")
        puzzle_tags = {
            "PuzzleRating": rating if rating.isascii() and rating.isdigit() else "",
            "PuzzleThemes": row.get("themes", ""),
        }
        site = clean_value(row.get("puzzleid", "")).replace("/", "-") or place
        return format_position_game(
            row["fen"], row["moves"], event=event, site=site, first_label=1, tags=puzzle_tags
        )

    return Table("Lichess puzzles", {name: index[name] for name in names}, format_row)


def _make_best_move_table(index: dict[str, int], fen: str, best: str) -> Table:
    def format_row(place: str, row: Row) -> str:
        return format_position_game(
            row[fen], find_first_move(row[best]), event="best move", site=place
        )

    return Table("best moves", {name: index[name] for name in (fen, best)}, format_row)


def _make_game_table(header: Sequence[str], index: dict[str, int], moves: str) -> Table:
    columns = {name: at for at, name in enumerate(header) if name in COLUMN_TAGS}
    for tag in COLUMN_TAGS:
        names = TAG_COLUMN_NAMES.get(tag, ())
        if tag not in EXACT_COLUMN_TAGS:
            names = (tag.lower(), *names)
        found = [index[name] for name in names if name in index]
        columns |= {tag: found[0]} if found and tag not in columns else {}
    columns |= {name: index[name] for name in (*KAGGLE_COLUMNS, moves) if name in index}

    def format_row(place: str, row: Row) -> str:
        return _format_game(place, row, row[moves])

    return Table("games", columns, format_row)


def _format_game(place: str, row: Row, moves: str) -> str:
    """Convert a row of a table of games to PGN; tags before the moves replace missing columns."""
    cell_tags, movetext = _split_tags(moves) if len(moves) <= MAX_MOVETEXT_BYTES else ({}, "")
    column_tags = {name: row[name] for name in COLUMN_TAGS if row.get(name)}
    if column_tags.get("Result", "*") not in RESULTS:  # such as "White" or "checkmate"
        del column_tags["Result"]
    for date in ("Date", "UTCDate"):
        if date in column_tags:
            column_tags[date] = column_tags[date][:10].replace("-", ".")
    rated = row.get("rated", "").lower()
    control = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", row.get("incrementcode", ""))
    kaggle_tags = {
        "Event": "" if not rated else "Rated game" if rated in ("true", "1") else "Casual game",
        "Result": RESULT_OF_WINNER.get(row.get("winner", "").lower(), ""),
        "Termination": TERMINATION_OF_STATUS.get(row.get("victorystatus", ""), ""),
        # Kaggle's base is in minutes
        "TimeControl": f"{int(control[1]) * 60}+{control[2]}" if control else "",
    }
    kaggle_tags = {name: value for name, value in kaggle_tags.items() if value}
    game_tags = {"Event": "?", "Site": place, "Result": ""} | cell_tags | kaggle_tags | column_tags
    # The empty comment keeps hostile movetext from starting a tag. The blank line at the end closes
    # unclosed comments.
    return f"{format_tags(game_tags)}\n{{}} {movetext} {game_tags['Result']}\n\n"


def _split_tags(cell: str) -> tuple[dict[str, str], str]:
    """Split a cell of PGN into its tags and its moves on one line, without `;` comments."""
    found, at = {}, 0
    while tag := _TAG_PATTERN.match(cell, at):
        if not tag[1].lower().startswith(("fianchetto", "puzzle")):
            found[tag[1]] = tag[2]
        at = tag.end()
    return found, " ".join(_COMMENT_PATTERN.sub(lambda part: part[1] or " ", cell[at:]).split())


def find_first_move(field: str) -> str:
    """Return the first move (UCI or SAN) of a field, "" if there is none."""
    found = UCI_PATTERN.search(field) or SAN_PATTERN.search(field)
    return found[0] if found else ""
