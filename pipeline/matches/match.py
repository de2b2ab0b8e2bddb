"""Play a match, resume it, and write its files.

games.jsonl     one finished game per line, in order of completion; sorted by number at the end of
                the match
games.pgn       the games with evaluations and clocks, sorted by number
summary.json    the result

A killed and resumed match has the same games as an uninterrupted one, unless moves depend on time
or on an external engine, because a game depends only on its number and the settings. If the
sequential test ends a match, pairs after the deciding one are not counted.

Stability: FORMAT_VERSION 1. games.pgn and summary.json are derived from games.jsonl.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from threading import Event
from typing import Any

import chess
import chess.pgn

from engine.errors import UserError
from engine.evaluation.handwritten import evaluate
from engine.json_files import parse_json
from engine.match import MatchError
from engine.match.arena import DRAW_RESULT, GameRecord, play
from engine.match.openings import Opening, choose_openings, generate_openings, read_book
from engine.match.players import Contestant
from engine.match.sprt import Estimate, SprtConfig, count_pairs, estimate, llr, verdict
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import add_path_to_errors
from pipeline.dumps.source import open_text
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.players import make_player
from pipeline.storage.job_folder import MATCH_KIND, JobFolder
from pipeline.storage.stores import publish_bytes, publish_json

FORMAT_VERSION = 1
GAMES_FILE, PGN_FILE, SUMMARY_FILE = "games.jsonl", "games.pgn", "summary.json"
ELO_FIELDS = ("elo", "elo_low", "elo_high")
"""Fields of a summary: the Elo difference and the ends of its 95 % interval."""
_PGN_TERMINATIONS = {
    "adjudication": "adjudication",
    "timeout": "time forfeit",
    "illegal move": "rules infraction",
    "crash": "abandoned",
}
"""PGN's Termination tag by the ending of a game; all other endings are normal."""


class MatchFilesError(UserError):
    """The directory belongs to another job, or its files cannot be read."""


def play_match(
    a: SideConfig,
    b: SideConfig,
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play the games of A against B that `out` does not have yet; write and return the summary.

    Raises PlayerError, BookError, MatchFilesError if `out` is damaged or belongs to another match,
    MatchError if `out` is in use or has games beyond `config.games`, the errors of opening a
    checkpoint, and Stopped after writing the summary of a stopped match.
    """
    player_a, identity_a = make_player(a, config.seed)
    player_b, identity_b = make_player(b, config.seed + 1)
    openings, book = _make_openings(config)
    identity = {
        "format_version": FORMAT_VERSION,
        "a": identity_a,
        "b": identity_b,
        "openings": {"book": book, "plies": config.plies, "seed": config.seed},
        "margin": config.margin,
        "ends_by": asdict(config.sprt) if config.early else None,
    }
    folder = JobFolder(out, MATCH_KIND, MatchFilesError, MatchError)
    with folder.lock():
        folder.claim(identity)
        games = read_games(out)
        if max(games, default=-1) >= config.games:
            last = max(games) + 1
            raise MatchError(f"{out} already holds game number {last}: set games to {last} or more")
        test = SequentialTest(config, games)
        if test.count_deciding_pairs() is None and len(games) < config.games:
            _play_missing((player_a, player_b), openings, config, out, test, progress, stop)
        pairs = test.count_deciding_pairs()
        end = config.games if pairs is None else 2 * pairs
        counted = [games[number] for number in sorted(games) if number < end]
        names = player_a.name, player_b.name
        if player_a.name == player_b.name:
            names = f"{player_a.name} (A)", f"{player_b.name} (B)"
        finished = pairs is not None or len(counted) == config.games
        if finished:
            clocks = {player.limit.clock or "-" for player in (player_a, player_b)}
            clock = clocks.pop() if len(clocks) == 1 else "?"
            pgn = "".join(_format_pgn(game, names, clock) + "\n\n" for game in counted)
            publish_bytes(out, GAMES_FILE, _format_json_lines(counted).encode())
            publish_bytes(out, PGN_FILE, pgn.encode())
        summary = {
            **summarize_match(counted, names, config.sprt),
            "finished": finished,
            "ended_by_test": pairs is not None,
        }
        summary["text"] = format_summary(summary)
        publish_json(out, SUMMARY_FILE, summary)
    if not finished:
        raise Stopped(f"stopped after {len(counted)} games; run the same command to continue")
    return summary


def _make_openings(config: ArenaConfig) -> tuple[list[Opening], str | None]:
    """Return the opening of each pair of games, and the hash of the book's file if there is one."""
    pairs, seed = config.games // 2, config.seed
    if config.book is None:
        return generate_openings(pairs, evaluate, seed=seed, plies=config.plies), None
    book = read_book(config.book, plies=config.plies, open_text=open_text)
    digest = hashlib.sha256(config.book.read_bytes()).hexdigest()
    return choose_openings(book, pairs, seed=seed), digest


class SequentialTest:
    """The sequential test of a match, updated as games are added to `games`.

    Pairs of games are tested in order of their numbers, not of completion, because the games that
    finish first are a biased sample.
    """

    def __init__(self, config: ArenaConfig, games: dict[int, GameRecord]) -> None:
        self.config, self.games = config, games
        self.counts, self.pairs, self.is_over = [0] * 5, 0, not config.early

    def count_deciding_pairs(self) -> int | None:
        """Return the number of pairs after which H0 or H1 was accepted.

        Returns None while the test is undecided, and if the settings do not end a match early.
        """
        test = self.config.sprt
        while not self.is_over and self.games.keys() >= {2 * self.pairs, 2 * self.pairs + 1}:
            first, second = (self.games[2 * self.pairs + game].points for game in (0, 1))
            self.counts[round(2 * (first + second))] += 1
            self.pairs += 1
            self.is_over = verdict(llr(self.counts, test), test) != "undecided"
        return self.pairs if self.config.early and self.is_over else None


def _play_missing(
    players: tuple[Contestant, Contestant],
    openings: Sequence[Opening],
    config: ArenaConfig,
    out: Path,
    test: SequentialTest,
    progress: Progress,
    stop: Stop,
) -> None:
    """Play and record games until all are finished, the test decides, or `stop` returns True."""
    (out / SUMMARY_FILE).unlink(missing_ok=True)  # it becomes outdated with the first new game
    games, before, started, decided = test.games, len(test.games), time.perf_counter(), Event()
    scored = sum(game.points for game in games.values())
    with closing(Journal(out, games)) as journal:

        def report(record: GameRecord) -> None:
            nonlocal scored
            journal.add(record)
            games[record.game] = record
            scored += record.points
            if test.count_deciding_pairs() is not None:
                decided.set()
            rate = (len(games) - before) / max(1e-9, time.perf_counter() - started)
            values = {"score": scored / len(games), "games/s": rate}
            progress(Tick(len(games), config.games, "games", values))

        play(
            players,
            openings,
            concurrency=config.concurrency,
            margin=config.margin,
            done=list(games),
            sequential=config.early,
            report=report,
            stop=lambda: decided.is_set() or stop(),
        )


def read_games(out: Path) -> dict[int, GameRecord]:
    """Read a match's finished games, keyed by number; a truncated last line is ignored.

    Raises MatchFilesError for a damaged line.
    """
    try:
        lines = (out / GAMES_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    games: dict[int, GameRecord] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            game = _parse_game(line)
            games[game.game] = game
        except ValueError as error:
            raise MatchFilesError(
                f"{out / GAMES_FILE}, line {number} is not a game: delete the line or the directory"
            ) from error
    return games


def _parse_game(line: bytes) -> GameRecord:
    """Parse a line of games.jsonl; raises ValueError for invalid data and illegal moves."""
    from pydantic import TypeAdapter

    row = parse_json(line)
    if not isinstance(row, dict) or row.keys() != {field.name for field in fields(GameRecord)}:
        raise ValueError("not a game")
    game = TypeAdapter(GameRecord).validate_json(line, strict=True)
    clocks = len(game.moves) if game.clocks is None else len(game.clocks)
    if (
        game.game < 0
        or game.result not in ("1-0", "0-1", DRAW_RESULT)
        or not len(game.moves) == len(game.scores) == clocks
    ):
        raise ValueError("not a game")
    board = chess.Board(game.fen)
    for uci in (*game.book, *game.moves):
        board.push_uci(uci)
    return game


class Journal:
    """The open games.jsonl of a match in progress."""

    def __init__(self, out: Path, games: Mapping[int, GameRecord]) -> None:
        """Rewrite the file with `games`, to drop a truncated last line; open it to append."""
        publish_bytes(out, GAMES_FILE, _format_json_lines(games.values()).encode())
        self.file = (out / GAMES_FILE).open("ab")

    def add(self, game: GameRecord) -> None:
        """Append a game and fsync the file."""
        with add_path_to_errors(Path(self.file.name)):
            self.file.write(_format_json_lines([game]).encode())
            self.file.flush()
            os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file; like writing, this fails on a full disk, with the path in the error."""
        with add_path_to_errors(Path(self.file.name)):
            self.file.close()


def _format_json_lines(games: Iterable[GameRecord]) -> str:
    return "".join(json.dumps(asdict(game)) + "\n" for game in games)


def _format_pgn(record: GameRecord, names: tuple[str, str], clock: str) -> str:
    """Return a game as PGN with evaluations from White's view, and clocks if any."""
    game = chess.pgn.Game()
    game.setup(chess.Board(record.fen))
    game.headers["Event"] = "fianchetto arena"
    game.headers["Site"] = "?"
    game.headers["Round"] = f"{record.game // 2 + 1}.{record.game % 2 + 1}"
    game.headers["White"], game.headers["Black"] = names if record.game % 2 == 0 else names[::-1]
    game.headers["Result"] = record.result
    game.headers["TimeControl"] = clock
    game.headers["Termination"] = _PGN_TERMINATIONS.get(record.ending, "normal")
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
        detail = f" ({record.detail})" if record.detail else ""
        forfeit = f"{names['ab'.index(record.forfeit)]} forfeits: {record.ending}{detail}"
        forfeit = forfeit.translate({ord("{"): "(", ord("}"): ")"})  # braces delimit comments
        node.comment = f"{node.comment} {forfeit}".strip()
    return str(game)


def summarize_match(
    games: Sequence[GameRecord], names: tuple[str, str], test: SprtConfig
) -> dict[str, Any]:
    """Return a match's summary from A's view; score, Elo, LOS and SPRT use complete pairs only."""
    by_number = {game.game: game.points for game in games}
    paired = [number for number in sorted(by_number) if number ^ 1 in by_number]
    counts = count_pairs([by_number[number] for number in paired])
    points = Counter(game.points for game in games)
    elo, ratio = estimate(counts), llr(counts, test)
    return {
        "a": names[0],
        "b": names[1],
        "games": len(games),
        "wins": points[1.0],
        "draws": points[0.5],
        "losses": points[0.0],
        "pairs": list(counts),
        "score": round(elo.score, 6),
        **_round_elo(elo),
        "los": round(elo.los, 6),
        "sprt": {
            "verdict": verdict(ratio, test),
            "llr": round(ratio, 4),
            "lower": round(test.lower, 4),
            "upper": round(test.upper, 4),
            **asdict(test),
        },
        "endings": _count_endings(games),
        "forfeits": {
            side: _count_endings(game for game in games if game.forfeit == side)
            for side in ("a", "b")
        },
    }


def _round_elo(elo: Estimate) -> dict[str, float | None]:
    """Return Elo and its interval, rounded; after a clean sweep, all but one bound are None."""
    known = {0.0: ["elo_high"], 1.0: ["elo_low"]}.get(elo.score, ELO_FIELDS)
    return {name: round(getattr(elo, name), 2) if name in known else None for name in ELO_FIELDS}


def _count_endings(games: Iterable[GameRecord]) -> dict[str, int]:
    return dict(sorted(Counter(game.ending for game in games).items()))


def format_summary(summary: dict[str, Any]) -> str:
    """Format a match's summary as text."""
    test, ended = summary["sprt"], summary["ended_by_test"]
    pairs = " ".join(map(str, summary["pairs"]))
    caveat = ", biased away from 0: the SPRT ended the match" if ended else ""
    lines = [
        f"{summary['a']} - {summary['b']}: +{summary['wins']} ={summary['draws']} "
        f"-{summary['losses']} of {summary['games']} games, score {summary['score']:.3f}",
        f"Elo {format_elo(summary)} (95 %{caveat}), LOS {100 * summary['los']:.1f} %, "
        f"pairs LL LD DD+WL WD WW: {pairs}",
        f"SPRT [{test['elo0']:g}, {test['elo1']:g}]: {test['verdict']}, LLR {test['llr']:.2f} "
        f"({test['lower']:.2f}, {test['upper']:.2f})",
        f"endings: {_list_counts(summary['endings'])}",
    ]
    for side, counts in summary["forfeits"].items():
        if counts:
            lines.append(f"forfeits of {summary[side]}: {_list_counts(counts)}")
    return "\n".join(lines)


def format_elo(row: Mapping[str, Any], prefix: str = "") -> str:
    """Format Elo with its 95 % interval, or with its one bound after a clean sweep.

    `prefix` starts the names of the row's fields. Returns "" if the match was not played.
    """
    elo, low, high = (row[prefix + name] for name in ELO_FIELDS)
    if elo is not None:
        return f"{elo:+.0f} [{low:+.0f}, {high:+.0f}]"
    if low is not None:
        return f"above {low:+.0f}"
    return "" if high is None else f"below {high:+.0f}"


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
