"""Review a game move by move, compared with what players of the same ratings would do."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import chess
import chess.engine
import chess.pgn
from pydantic import BaseModel, ConfigDict, Field

from engine.player import Play
from engine.search.human import ASSUMED_RATING
from model.inference.player import Player
from pipeline.board import scores
from pipeline.board.ask import PLAYERS, SIMULATIONS, People, reads_ratings, reads_speed
from pipeline.board.game import (
    name_game,
    number_moves,
    read_pgn,
    read_rating,
    read_tags,
    read_time_control,
)
from pipeline.errors import ConfigError
from pipeline.storage.preflight import is_installed

MAX_MOMENTS, MIN_SURPRISE = 6, 0.05
"""Maximum number of highlighted moves, and their minimum difference from the expected loss."""
MAX_LINE_PLIES = 8
"""Maximum number of half-moves shown of a line."""
SOURCES = {
    "game": "the game's own evaluations",
    "stockfish": "Stockfish",
    "search": "the network's search",
}
AVERAGED_COLUMNS = ("loss", "found", "best_probability", "blunder", "risk")
"""Columns of rows that are averaged over a side's moves."""
Rating = Annotated[int, Field(ge=100, le=4000)]
Row = dict[str, Any]


class ReviewRequest(BaseModel):
    """Request to review one game."""

    model_config = ConfigDict(extra="forbid")

    pgn: str
    network: str = ""
    """Network that predicts human moves, by name."""
    white: Rating | None = None
    """White's rating; by default the one in the game's tags."""
    black: Rating | None = None
    source: scores.Source = "auto"


def review(
    request: ReviewRequest,
    player: Player,
    turns: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
    people: People = PLAYERS,
) -> Generator[Row, None, None]:
    """Yield the header, a row for each move, and the summary; raise GameError, ConfigError.

    The lock `turns` is held while the network computes, but not while Stockfish does. Scores are
    White's expected scores after the move, losses the mover's. Each row is yielded after the next
    position has been scored, which its loss needs.
    """
    game = read_pgn(request.pgn)
    header = _make_header(game, request, people)
    yield {"header": header}
    rows: list[Row] = []
    with scores.open_stockfish() if header["source"] == "stockfish" else nullcontext() as engine:
        board, before = game.board(), None
        for node in (game, *game.mainline()):
            if node.move is not None:
                board.push(node.move)
            # a recorded game may go on after a draw, for example by insufficient material
            over = not any(board.legal_moves)
            with turns:
                analysis = None if over else player.analyse(board, SIMULATIONS, lines=1)
            score, best = _score_position(node, board, analysis, engine, header["source"])
            here = _ScoredPosition(board.copy(), analysis, score, best)
            if before is not None:
                with turns:
                    rows.append(_make_row(before, here, player, people, header))
                yield {"row": rows[-1]}
            before = here
    yield {"summary": _summarize(rows, header["ratings"], people)}


def _make_header(game: chess.pgn.Game, request: ReviewRequest, people: People) -> Row:
    ratings = {
        side: getattr(request, side) or read_rating(game.headers, side)
        for side in ("white", "black")
    }
    source, own = request.source, scores.has_scores(game)
    if source == "auto":
        source = "game" if own else "stockfish" if is_installed("stockfish") else "search"
    if source == "game" and not own:
        raise ConfigError("the game has no evaluations ([%eval]): choose another source of scores")
    tags = read_tags(game.headers)
    about = [tags.get("Event"), tags.get("Date"), f"scores by {SOURCES[source]}"]
    for side, other in (("white", "black"), ("black", "white")):
        if not ratings[side] and ratings[other] and tags.get(f"{side.title()}Type") == "program":
            ratings[side] = ratings[other]
            about.append(f"{side} is a program, compared with players rated {ratings[other]}")
    unknown = [side for side in ratings if not ratings[side]]
    about += [f"{side}'s rating is unknown: {ASSUMED_RATING} assumed" for side in unknown]
    return {
        "title": name_game(game.headers),
        "about": "; ".join(text for text in about if text),
        "start": game.board().fen(),
        "moves": [move.uci() for move in game.mainline_moves()],
        "ratings": {side: ratings[side] or ASSUMED_RATING for side in ratings},
        "people": people.name,
        "is_one_person": people.is_one_person,
        "time_control": read_time_control(game),
        "source": source,
    }


@dataclass(frozen=True, slots=True)
class _ScoredPosition:
    """A position of the game; its score is White's."""

    board: chess.Board
    analysis: Play | None
    score: float
    best: chess.Move | None


def _score_position(
    node: chess.pgn.GameNode,
    board: chess.Board,
    analysis: Play | None,
    engine: chess.engine.SimpleEngine | None,
    source: str,
) -> tuple[float, chess.Move | None]:
    """Return White's score of a position and the best move, which is None without legal moves."""
    best, final = None if analysis is None else analysis.moves[0].move, scores.score_if_over(board)
    if final is not None or analysis is None:
        return (0.5 if final is None else final), best
    if source == "game":
        return scores.score_in_game(node), best
    if engine is not None:
        score, move = scores.score_by_stockfish(engine, board)
        return score, move or best
    return scores.score_for_white(board, analysis), best


def _make_row(
    before: _ScoredPosition, after: _ScoredPosition, player: Player, people: People, header: Row
) -> Row:
    """Return the row of the move between two positions.

    The best move loses nothing, except by the game's own evaluations, which did not choose it.
    """
    board, move, analysis, best = before.board, after.board.peek(), before.analysis, before.best
    assert analysis is not None and best is not None  # noqa: PT018 - the game went on
    side, other = chess.COLOR_NAMES[board.turn], chess.COLOR_NAMES[not board.turn]
    known = header["ratings"] if reads_ratings(player) else {side: None, other: None}
    given: Any = {"rating": known[side], "opponent_rating": known[other]}
    given["time_control"] = header["time_control"] if reads_speed(player) else None
    policy = player.choose(board, temperature=0, **given).probabilities
    losses = scores.measure_move_losses(policy, analysis)
    found, usual = move == best, scores.average_loss(losses)
    loss = max((before.score - after.score) * (1 if board.turn else -1), 0.0)
    if found and header["source"] != "game":
        loss = 0.0
    bounded = scores.measure_loss(before.score, after.score, board.turn)
    row: Row = {
        "ply": after.board.ply(),
        "side": side,
        "name": number_moves([move], board)[0],
        "uci": move.uci(),
        "before": before.score,
        "score": after.score,
        "loss": loss,
        "blunder": loss > 0 and bounded > scores.BLUNDER,
        "probability": policy[scores.promote_to_queen(move)],
        "best": board.san(best),
        "best_uci": best.uci(),
        "best_probability": policy[scores.promote_to_queen(best)],
        "found": found,
        "risk": scores.predict_risk(losses, header["ratings"][side]),
        "expected_loss": usual,
    }
    more = f"; {row['best']} was better" if loss > usual else f" where others lose {usual:.2f}"
    line = " ".join(number_moves(analysis.moves[0].variation, board)[:MAX_LINE_PLIES])
    text = _describe(row, people, header["ratings"][side], line)
    return row | {"why": f"lost {loss:.2f}{more}", "text": text}


def _describe(row: Row, people: People, rating: int, line: str) -> str:
    """Describe a row in sentences; `line` is the search's best variation."""
    verdict = f"lost {row['loss']:.2f} of expected score"
    if row["found"] and row["loss"] < 0.02:
        verdict = "the best move"
    rated = f" rated {rating}"
    who_played = people.describe_share(row["probability"], rated)
    sentences = [f"{row['name']}: {verdict}", f"It is a move that {who_played}"]
    if not row["found"]:
        who_finds = people.describe_share(row["best_probability"], rated)
        sentences.append(f"Best was {row['best']}, which {who_finds}; the search's line is {line}")
    sentences.append(f"Before the move, the risk of a blunder was {row['risk']:.0%}")
    return ". ".join(sentences) + "."


def _pick_moments(rows: Sequence[Row]) -> list[int]:
    """Return the indices of moves with the most unusual loss for the player's rating, in order."""
    surprises = {index: abs(row["loss"] - row["expected_loss"]) for index, row in enumerate(rows)}
    found = [index for index in surprises if surprises[index] >= MIN_SURPRISE]
    return sorted(sorted(found, key=surprises.__getitem__, reverse=True)[:MAX_MOMENTS])


def _summarize(rows: Sequence[Row], ratings: Mapping[str, int], people: People) -> Row:
    """Return each side's means, a table of predicted and observed figures, and the moments."""
    others = people.name if people.is_one_person else "others at this rating"
    heads = ["", "moves", "lost per move", "best moves", others, "blunders", others]
    sides, table = {}, [heads]
    for side, rating in ratings.items():
        own = [row for row in rows if row["side"] == side]
        mean = {name: sum(row[name] for row in own) / max(len(own), 1) for name in AVERAGED_COLUMNS}
        sides[side] = mean | {"moves": len(own)}
        shares = [f"{mean[name]:.1%}" for name in AVERAGED_COLUMNS[1:]]
        table.append([f"{side} ({rating})", str(len(own)), f"{mean['loss']:.3f}", *shares])
    return {"sides": sides, "table": table, "moments": _pick_moments(rows)}
