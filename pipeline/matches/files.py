"""The files of a match.

games.jsonl     one finished game per line, in the order they ended; sorted by number when the match
is over
games.pgn       the games with evaluations and clocks, by number
summary.json    the result

Stability: FORMAT_VERSION 1. The other files are made from games.jsonl whenever a match ends or
stops.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import chess
import chess.pgn

from engine.errors import UserError
from engine.json_files import parse_json
from engine.match.game import GameRecord
from engine.temporaries import name_path
from pipeline.evaluation.render import publish_bytes

FORMAT_VERSION = 1
RESULTS = ("1-0", "0-1", "1/2-1/2")
JOURNAL, PGN, SUMMARY = "games.jsonl", "games.pgn", "summary.json"

_TERMINATIONS = {
    "adjudication": "adjudication",
    "timeout": "time forfeit",
    "illegal move": "rules infraction",
    "crash": "abandoned",
}


class MatchFilesError(UserError):
    """A directory that holds something other than this match, or cannot be read."""


def read_games(out: Path) -> dict[int, GameRecord]:
    """Return finished games by number; a truncated last line is ignored."""
    try:
        lines = (out / JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    games: dict[int, GameRecord] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            game = _record(line)
            games[game.game] = game
        except ValueError as error:
            raise MatchFilesError(
                f"{out / JOURNAL}, line {number} is not a game: remove the line, or the match"
            ) from error
    return games


def _record(line: bytes) -> GameRecord:
    """Return the game of a journal line; raises ValueError, also for illegal moves."""
    from pydantic import TypeAdapter

    row = parse_json(line)
    if not isinstance(row, dict) or row.keys() != {field.name for field in fields(GameRecord)}:
        raise ValueError("not a game")
    game = TypeAdapter(GameRecord).validate_json(line, strict=True)
    clocks = len(game.moves) if game.clocks is None else len(game.clocks)
    if (
        game.game < 0
        or game.result not in RESULTS
        or not len(game.moves) == len(game.scores) == clocks
    ):
        raise ValueError("not a game")
    board = chess.Board(game.fen)
    for uci in (*game.book, *game.moves):
        board.push_uci(uci)
    return game


class Journal:
    """The open file games.jsonl of a match that is being played."""

    def __init__(self, out: Path, games: Mapping[int, GameRecord]) -> None:
        """Rewrite the known games without a truncated last line, and open the file to append."""
        publish_bytes(out, JOURNAL, _lines(games.values()).encode())
        self.file = (out / JOURNAL).open("ab")

    def add(self, game: GameRecord) -> None:
        """Append a game and sync it to disk."""
        with name_path(Path(self.file.name)):
            self.file.write(_lines([game]).encode())
            self.file.flush()
            os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file, which on a full disk fails as writing did."""
        with name_path(Path(self.file.name)):
            self.file.close()


def write_all(out: Path, games: Sequence[GameRecord], names: tuple[str, str], clock: str) -> None:
    """Write the journal by game number and the PGN; `clock` is the PGN's TimeControl."""
    pgn = "".join(pgn_of(game, names, clock) + "\n\n" for game in games)
    publish_bytes(out, JOURNAL, _lines(games).encode())
    publish_bytes(out, PGN, pgn.encode())


def _lines(games: Iterable[GameRecord]) -> str:
    return "".join(json.dumps(asdict(game)) + "\n" for game in games)


def _colours(game: GameRecord, names: tuple[str, str]) -> tuple[str, str]:
    """Return White's and Black's names."""
    return names if game.game % 2 == 0 else (names[1], names[0])


def pgn_of(record: GameRecord, names: tuple[str, str], clock: str) -> str:
    """Return a game as PGN with evaluations from White's view, and clocks if there are any."""
    game = chess.pgn.Game()
    game.setup(chess.Board(record.fen))
    game.headers["Event"] = "fianchetto arena"
    game.headers["Site"] = "?"
    game.headers["Round"] = f"{record.game // 2 + 1}.{record.game % 2 + 1}"
    game.headers["White"], game.headers["Black"] = _colours(record, names)
    game.headers["Result"] = record.result
    game.headers["TimeControl"] = clock
    game.headers["Termination"] = _TERMINATIONS.get(record.ending, "normal")
    game.headers["PlyCount"] = str(len(record.book) + len(record.moves))
    node: chess.pgn.GameNode = game
    for uci in record.book:
        node = node.add_variation(chess.Move.from_uci(uci))
    for index, uci in enumerate(record.moves):
        node = node.add_variation(chess.Move.from_uci(uci))
        if record.scores[index]:
            node.comment = f"[%eval {record.scores[index]}]"
        if record.clocks is not None:
            node.set_clock(record.clocks[index])
    if record.forfeit:
        loser = _colours(record, names)[int((record.forfeit == "b") == (record.game % 2 == 0))]
        about = f"{loser} forfeits: {record.ending}" + (
            f" ({record.detail})" if record.detail else ""
        )
        node.comment = " ".join(
            filter(None, [node.comment, about.translate({ord("{"): "(", ord("}"): ")"})])
        )
    return str(game)
