"""Play a match, resume it, and write its files.

games.jsonl     one finished game per line, in order of completion; sorted by number when the match
                is over
games.pgn       the games with evaluations and clocks, sorted by number
summary.json    the result

A killed and resumed match has the same games as an uninterrupted one, unless moves depend on time
or on an external engine. A game depends only on its number. If the sequential test ends a match,
pairs after the deciding one are not counted.

Stability: FORMAT_VERSION 1. The other files are derived from games.jsonl whenever a match ends or
stops.
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
from engine.match.arena import DRAW, GameRecord, play
from engine.match.openings import Opening, choose, generate, read_book
from engine.match.players import Contestant
from engine.match.sprt import Estimate, SprtConfig, estimate, llr, pair_counts, verdict
from engine.progress import Progress, Stop, Tick, never, silent
from engine.temporaries import add_path_to_errors
from pipeline.dumps.source import open_text
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.players import make_player
from pipeline.storage.job_folder import MATCH_KIND, JobFolder
from pipeline.storage.stores import publish_bytes, publish_json

FORMAT_VERSION = 1
JOURNAL, PGN, SUMMARY = "games.jsonl", "games.pgn", "summary.json"
ELO = ("elo", "elo_low", "elo_high")
"""Fields of a summary: the Elo difference and the ends of its 95 % interval."""
_TERMINATIONS = {
    "adjudication": "adjudication",
    "timeout": "time forfeit",
    "illegal move": "rules infraction",
    "crash": "abandoned",
}


class MatchFilesError(UserError):
    """The directory belongs to something other than this match, or cannot be read."""


def play_match(
    a: SideConfig,
    b: SideConfig,
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play the missing games of A against B in `out`; write and return the summary.

    Raises PlayerError, BookError, MatchFilesError if `out` belongs to another match, MatchError
    while another process uses `out`, and Stopped after writing the files of a stopped match.
    """
    (first, one), (second, two) = make_player(a, config.seed), make_player(b, config.seed + 1)
    openings, book = _openings(config)
    identity = {
        "format_version": FORMAT_VERSION,
        "a": one,
        "b": two,
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
        if test.decided() is None and len(games) < config.games:
            _play_missing((first, second), openings, config, out, test, progress, stop)
        pairs = test.decided()
        end = config.games if pairs is None else 2 * pairs
        counted = [games[number] for number in sorted(games) if number < end]
        same = first.name == second.name
        names = (f"{first.name} (A)", f"{second.name} (B)") if same else (first.name, second.name)
        finished = pairs is not None or len(counted) == config.games
        if finished:
            clocks = {player.limit.clock or "-" for player in (first, second)}
            clock = clocks.pop() if len(clocks) == 1 else "?"
            pgn = "".join(_pgn_of(game, names, clock) + "\n\n" for game in counted)
            publish_bytes(out, JOURNAL, _format_json_lines(counted).encode())
            publish_bytes(out, PGN, pgn.encode())
        summary = {
            **summarize(counted, names, config.sprt),
            "finished": finished,
            "ended_by_test": pairs is not None,
        }
        summary["text"] = format_summary(summary)
        publish_json(out, SUMMARY, summary)
    if not finished:
        raise Stopped(f"stopped after {len(counted)} games; run the same command to continue")
    return summary


def _openings(config: ArenaConfig) -> tuple[list[Opening], str | None]:
    """Return the opening of each pair, and the hash of the book's file (None without a book)."""
    pairs, seed = config.games // 2, config.seed
    if config.book is None:
        return generate(pairs, evaluate, seed=seed, plies=config.plies), None
    book = read_book(config.book, plies=config.plies, open_text=open_text)
    digest = hashlib.sha256(config.book.read_bytes()).hexdigest()
    return choose(book, pairs, seed=seed), digest


class SequentialTest:
    """The sequential test of a match, updated pair by pair as games are added to `games`.

    Pairs count in order of their numbers, not of completion, because the games that finish first
    are a biased sample.
    """

    def __init__(self, config: ArenaConfig, games: dict[int, GameRecord]) -> None:
        self.config, self.games = config, games
        self.counts, self.pairs, self.is_over = [0] * 5, 0, not config.early

    def decided(self) -> int | None:
        """Return the number of pairs after which H0 or H1 was accepted.

        None while the test is undecided, or if the match does not end early.
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
    (out / SUMMARY).unlink(missing_ok=True)  # it becomes outdated with the first new game
    games, before, begun, over = test.games, len(test.games), time.perf_counter(), Event()
    scored = sum(game.points for game in games.values())
    with closing(Journal(out, games)) as journal:

        def report(record: GameRecord) -> None:
            nonlocal scored
            journal.add(record)
            games[record.game] = record
            scored += record.points
            if test.decided() is not None:
                over.set()
            rate = (len(games) - before) / max(1e-9, time.perf_counter() - begun)
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
            stop=lambda: over.is_set() or stop(),
        )


def read_games(out: Path) -> dict[int, GameRecord]:
    """Read the finished games by number; a truncated last line is ignored."""
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
                f"{out / JOURNAL}, line {number} is not a game: delete the line or the directory"
            ) from error
    return games


def _record(line: bytes) -> GameRecord:
    """Parse a journal line into a game; raises ValueError for bad data and illegal moves."""
    from pydantic import TypeAdapter

    row = parse_json(line)
    if not isinstance(row, dict) or row.keys() != {field.name for field in fields(GameRecord)}:
        raise ValueError("not a game")
    game = TypeAdapter(GameRecord).validate_json(line, strict=True)
    clocks = len(game.moves) if game.clocks is None else len(game.clocks)
    if (
        game.game < 0
        or game.result not in ("1-0", "0-1", DRAW)
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
        """Rewrite the file with `games`, which drops a truncated last line; open it to append."""
        publish_bytes(out, JOURNAL, _format_json_lines(games.values()).encode())
        self.file = (out / JOURNAL).open("ab")

    def add(self, game: GameRecord) -> None:
        """Append a game and fsync the file."""
        with add_path_to_errors(Path(self.file.name)):
            self.file.write(_format_json_lines([game]).encode())
            self.file.flush()
            os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file; on a full disk this raises the same error as writing."""
        with add_path_to_errors(Path(self.file.name)):
            self.file.close()


def _format_json_lines(games: Iterable[GameRecord]) -> str:
    return "".join(json.dumps(asdict(game)) + "\n" for game in games)


def _pgn_of(record: GameRecord, names: tuple[str, str], clock: str) -> str:
    """Return a game as PGN with evaluations from White's view, and clocks if any."""
    game = chess.pgn.Game()
    game.setup(chess.Board(record.fen))
    game.headers["Event"] = "fianchetto arena"
    game.headers["Site"] = "?"
    game.headers["Round"] = f"{record.game // 2 + 1}.{record.game % 2 + 1}"
    game.headers["White"], game.headers["Black"] = names if record.game % 2 == 0 else names[::-1]
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
        detail = f" ({record.detail})" if record.detail else ""
        about = f"{names['ab'.index(record.forfeit)]} forfeits: {record.ending}{detail}"
        about = about.translate({ord("{"): "(", ord("}"): ")"})
        node.comment = f"{node.comment} {about}".strip()
    return str(game)


def summarize(
    games: Sequence[GameRecord], names: tuple[str, str], test: SprtConfig
) -> dict[str, Any]:
    """Return the summary of a match; Elo and SPRT use complete pairs only."""
    by_number = {game.game: game.points for game in games}
    paired = [number for number in sorted(by_number) if number ^ 1 in by_number]
    counts = pair_counts([by_number[number] for number in paired])
    points = Counter(game.points for game in games)
    found, ratio = estimate(counts), llr(counts, test)
    return {
        "a": names[0],
        "b": names[1],
        "games": len(games),
        "wins": points[1.0],
        "draws": points[0.5],
        "losses": points[0.0],
        "pairs": list(counts),
        "score": round(found.score, 6),
        **_bounded_elo(found),
        "los": round(found.los, 6),
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


def _bounded_elo(found: Estimate) -> dict[str, float | None]:
    """Return Elo with its interval; a clean sweep has only one bound."""
    only = {0.0: "elo_high", 1.0: "elo_low"}.get(found.score)
    return {name: round(getattr(found, name), 2) if only in (None, name) else None for name in ELO}


def _count_endings(games: Iterable[GameRecord]) -> dict[str, int]:
    return dict(sorted(Counter(game.ending for game in games).items()))


def format_summary(summary: dict[str, Any]) -> str:
    """Return a summary as text."""
    test, ended = summary["sprt"], summary["ended_by_test"]
    pairs = " ".join(map(str, summary["pairs"]))
    doubt = ", biased away from 0: the SPRT ended the match" if ended else ""
    lines = [
        f"{summary['a']} - {summary['b']}: +{summary['wins']} ={summary['draws']} "
        f"-{summary['losses']} of {summary['games']} games, score {summary['score']:.3f}",
        f"Elo {format_elo(summary)} (95 %{doubt}), LOS {100 * summary['los']:.1f} %, "
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
    """Format Elo with its 95 % interval, or a clean sweep's bound; return "" without a match."""
    elo, low, high = (row[prefix + name] for name in ELO)
    if elo is not None:
        return f"{elo:+.0f} [{low:+.0f}, {high:+.0f}]"
    if low is not None:
        return f"above {low:+.0f}"
    return "" if high is None else f"below {high:+.0f}"


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
