"""Parse, validate and describe games: the one in a request, and those of a PGN text."""

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TextIO

import chess
import chess.pgn
from pydantic import BaseModel, ConfigDict, Field

from engine.board.position import FenError
from engine.errors import UserError
from engine.player.boards import parse_playable
from engine.player.policy import parse_time_control
from pipeline.board import scores

MAX_PLIES, MAX_TAG_CHARS = 2_000, 100
"""Maximum number of half-moves of a game, and of characters shown of a tag."""
SAVED_TAGS = (
    *("Event", "Site", "Date", "White", "Black", "WhiteElo", "BlackElo", "WhiteType", "BlackType"),
    *("TimeControl", "Opening", "Style"),
)
"""Tags that a saved game may have, besides its result."""
Over = Literal["", "w resigns", "b resigns", "w time", "b time", "agreed"]
"""Ways to end a game: a side resigns or runs out of time, or the players agree to a draw."""
ENDINGS = {
    chess.Termination.CHECKMATE: "by checkmate",
    chess.Termination.STALEMATE: "by stalemate",
    chess.Termination.INSUFFICIENT_MATERIAL: "by insufficient material",
    chess.Termination.SEVENTYFIVE_MOVES: "by the seventy-five-move rule",
    chess.Termination.FIVEFOLD_REPETITION: "by fivefold repetition",
}
"""Phrases for the ends of a game by the rules."""


class GameError(UserError):
    """The game cannot be read or reviewed, or a move is illegal."""


class GameSoFar(BaseModel):
    """A game, and a position in it, as part of a request."""

    model_config = ConfigDict(extra="forbid")

    start: Annotated[str, Field(max_length=100)] = ""
    """FEN of the first position; "" for the standard one."""
    moves: Annotated[list[Annotated[str, Field(max_length=10)]], Field(max_length=MAX_PLIES)] = []
    """Moves from the first position, in UCI or SAN."""
    at: Annotated[int, Field(ge=0)] | None = None
    """Number of moves before the position; None for all."""
    network: str = ""
    """Name of the network to use."""
    time_control: Annotated[str, Field(max_length=20)] = ""
    """Base and increment of the game in seconds, such as 180+2; "" without a clock."""
    over: Over = ""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of a game to save."""

    def replay(self) -> chess.Board:
        """Return the board after all moves, with its move stack. Raises FenError, GameError."""
        board = parse_playable(self.start or chess.STARTING_FEN)
        for word in self.moves:
            board.push(_parse_move(board, word))
        return board

    def board(self) -> chess.Board:
        """Return the board at the requested position. Raises FenError, GameError."""
        board = self.replay()
        while self.at is not None and len(board.move_stack) > self.at:
            board.pop()
        return board


def _parse_move(board: chess.Board, word: str) -> chess.Move:
    """Parse a move in UCI or SAN; the letter of the piece may be lowercase."""
    parsers = (board.parse_uci, word), (board.parse_san, word), (board.parse_san, word.capitalize())
    for parse, text in parsers:
        with suppress(ValueError):
            if move := parse(text):
                return move
    raise GameError(f"{word!r} is not a legal move in this position")


def describe_position(game: GameSoFar) -> dict[str, Any]:
    """Describe a position for the page: pieces, legal moves, all moves of the game, its end."""
    whole, board = game.replay(), game.board()
    at_end = len(board.move_stack) == len(whole.move_stack)
    ending, king = describe_end(board, game.over if at_end else "")[1], board.king(board.turn)
    pieces = board.piece_map().items()
    return {
        "pieces": {chess.square_name(square): name_piece(piece) for square, piece in pieces},
        "turn": "w" if board.turn else "b",
        "legal": {} if ending else {move.uci(): board.san(move) for move in board.legal_moves},
        "moves": [move.uci() for move in whole.move_stack],
        "sans": number_moves(whole.move_stack, whole.root()),
        "check": chess.square_name(king) if board.is_check() and king is not None else "",
        "ending": ending,
    }


def name_piece(piece: chess.Piece) -> str:
    """Return a piece's name, such as `white pawn`."""
    return f"{chess.COLOR_NAMES[piece.color]} {chess.PIECE_NAMES[piece.piece_type]}"


def describe_end(board: chess.Board, over: Over = "") -> tuple[str, str]:
    """Return the result and a phrase such as `Black wins on time, 0-1`, or "" for both."""
    reason = ""
    winner: chess.Color | None = None
    if outcome := board.outcome():
        winner, reason = outcome.winner, ENDINGS[outcome.termination]
    elif board.is_repetition(3):
        reason = "by threefold repetition"
    elif board.is_fifty_moves():
        reason = "by the fifty-move rule"
    elif over == "agreed":
        reason = "by agreement"
    elif over:
        winner, reason = over[0] == "b", "by resignation" if over[2:] == "resigns" else "on time"
        if over[2:] == "time" and board.has_insufficient_material(winner):
            reason = f"on time, because {chess.COLOR_NAMES[winner].title()} cannot mate"
            winner = None
    if not reason:
        return "", ""
    result = "1/2-1/2" if winner is None else "1-0" if winner else "0-1"
    verdict = "Draw" if winner is None else f"{chess.COLOR_NAMES[winner].title()} wins"
    return result, f"{verdict} {reason}, {result}"


def write_pgn(request: GameSoFar) -> str:
    """Return a game as PGN, with its SAVED_TAGS, cut and without quotes or control characters."""
    board = request.replay()
    game = chess.pgn.Game.from_board(board)
    for name in SAVED_TAGS:
        chars = [char for char in request.tags.get(name, "")[:80] if char.isprintable()]
        if value := "".join(chars).translate({ord('"'): None, ord("\\"): None}):
            game.headers[name] = value
    result, words = describe_end(board, request.over)
    game.headers["Result"] = result or "*"
    if words:
        game.headers["Termination"] = words.rpartition(",")[0]
    return f"{game}\n"


class _Builder(chess.pgn.GameBuilder[chess.pgn.Game]):
    """Builder of a game without variations, which keeps errors instead of logging them."""

    def begin_variation(self) -> Any:
        """Skip a variation: python-chess would copy the whole game for each."""
        return chess.pgn.SKIP

    def end_variation(self) -> None:
        """Do nothing, since the variation was skipped."""

    def handle_error(self, error: Exception) -> None:
        self.game.errors.append(error)


def read_next(stream: TextIO) -> chess.pgn.Game | None:
    """Read the next game of a PGN text with its errors; None at the end."""
    return chess.pgn.read_game(stream, Visitor=_Builder)


def read_pgn(text: str) -> chess.pgn.Game:
    """Parse the first game in a text. Raises GameError if there is none or it is invalid."""
    game = read_next(io.StringIO(text.lstrip("\ufeff \n\r\t")))
    if game is None:
        raise GameError("this text contains no game: paste a game in PGN")
    return check_game(game)


def check_game(game: chess.pgn.Game) -> chess.pgn.Game:
    """Return a game of standard chess with at least one move; raise GameError for others."""
    if game.errors:
        raise GameError(f"the game cannot be read: {game.errors[0]}")
    board = game.board()
    if type(board) is not chess.Board or board.chess960:
        raise GameError("only standard chess can be reviewed")
    try:
        parse_playable(board.fen())
    except FenError as error:
        raise GameError(f"its first position cannot be played: {error}") from error
    if not all(game.mainline_moves()):  # null moves, written "--" or "Z0"
        raise GameError("the game has a null move: remove it")
    if not 0 < game.end().ply() - game.ply() <= MAX_PLIES:
        raise GameError(f"the game must have 1 to {MAX_PLIES} half-moves")
    return game


def read_tags(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a game that have a value, each cut to MAX_TAG_CHARS."""
    return {name: text[:MAX_TAG_CHARS] for name, text in headers.items() if text.strip("?.*")}


def name_game(headers: Mapping[str, str]) -> str:
    """Return a game's players and result."""
    tags = read_tags(headers)
    names = f"{tags.get('White', 'White')} - {tags.get('Black', 'Black')}"
    return f"{names} {tags.get('Result', '')}"


def read_rating(tags: Mapping[str, str], side: str) -> int | None:
    """Return the rating of `white` or `black` in a game's tags; None if absent or invalid."""
    text = tags.get(f"{side.title()}Elo", "")
    return int(text) if text.isdecimal() and len(text) <= 4 and 0 < int(text) <= 4000 else None


def read_time_control(game: chess.pgn.Game) -> str | None:
    """Return the time control in the game's tags, such as 180+2; None if absent or malformed."""
    text = game.headers.get("TimeControl", "")
    with suppress(UserError):
        parse_time_control(text)
        return text
    return None


def number_moves(moves: Sequence[chess.Move], board: chess.Board) -> list[str]:
    """Return moves in SAN, with move numbers before White's moves and the first move."""
    after = board.copy(stack=False)
    sans: list[str] = []
    for move in moves:
        number = f"{after.fullmove_number}{'.' if after.turn else '...'} "
        sans.append((number if after.turn or not sans else "") + after.san(move))
        after.push(move)
    return sans


@dataclass(frozen=True, slots=True)
class PlayerGame:
    """A game seen by one of its players, small enough to send to another process."""

    index: int
    """Number of the game in the text."""
    color: chess.Color
    """The player's color."""
    tags: Mapping[str, str]
    start: str
    """FEN of the first position."""
    moves: tuple[chess.Move, ...]
    white_scores: tuple[float, ...]
    """White's expected score in each position by the [%eval] comments; empty without them."""
    clocks: Mapping[int, float]
    """Seconds left after a half-move on the clock of the side that made it; the first is 1."""

    def tag(self, name: str) -> str:
        """Return a tag, or "" if it is unknown."""
        return self.tags.get(name, "").strip("?")

    @property
    def score(self) -> float | None:
        """The player's score, 0 to 1; None if the game has no result."""
        white = {"1-0": 1.0, "1/2-1/2": 0.5, "0-1": 0.0}.get(self.tag("Result"))
        return white if white is None or self.color else 1 - white

    @property
    def expected(self) -> float | None:
        """The score that the ratings predict; None if one is unknown."""
        own, other = (
            read_rating(self.tags, chess.COLOR_NAMES[side]) for side in (self.color, not self.color)
        )
        return None if own is None or other is None else 1 / (1 + 10 ** ((other - own) / 400))

    @property
    def opening(self) -> str:
        """The opening's name without its variation, or else the first four half-moves."""
        if name := self.tag("Opening"):
            return name.partition(":")[0][:80]
        return " ".join(number_moves(self.moves[:4], chess.Board(self.start)))


def read_player_game(index: int, game: chess.pgn.Game, color: chess.Color) -> PlayerGame:
    """Return a parsed game from the side of the player with `color`."""
    nodes: list[chess.pgn.GameNode] = [game, *game.mainline()]
    clocks: dict[int, float] = {}
    for ply, node in enumerate(nodes):
        with suppress(ValueError, OverflowError):  # numbers with hundreds of digits
            if (left := node.clock()) is not None:
                clocks[ply] = left
    moves = tuple(game.mainline_moves())
    has_scores = scores.has_scores(game)
    white = tuple(scores.score_in_game(node) for node in nodes) if has_scores else ()
    return PlayerGame(index, color, dict(game.headers), game.board().fen(), moves, white, clocks)
