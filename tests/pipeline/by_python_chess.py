"""Read PGN with python-chess, as an oracle for the pipeline, of which nothing is imported.

The main line is read with `chess.pgn`'s own tokens, boards and errors, and each game gets a status
in the pipeline's words. `find_problem` finds the problems that python-chess skips silently.
"""

import io
import re
from dataclasses import dataclass, field

import chess
import chess.pgn

RESULTS = {"1-0": 1, "0-1": -1, "1/2-1/2": 0}


@dataclass(slots=True)
class Reading:
    """A game: its tags, its positions, and what python-chess reported."""

    headers: chess.pgn.Headers = field(default_factory=lambda: chess.pgn.Headers({}))
    start: chess.Board | None = None
    board: chess.Board | None = None
    errors: list[Exception] = field(default_factory=list)
    comments: list[list[str]] = field(default_factory=list)
    """Comments before the first move, after the first move, after the second, and so on."""
    movetext_result: str = "*"
    has_null_move: bool = False

    @property
    def moves(self) -> list[chess.Move]:
        return self.board.move_stack if self.board is not None else []

    @property
    def result(self) -> int | None:
        """Return White's result, by the tag or else by the movetext."""
        tag = self.headers.get("Result", "*")
        return RESULTS.get(tag if tag in RESULTS else self.movetext_result)

    @property
    def status(self) -> str:
        """Return the status that the pipeline should give the game."""
        if self.board is None:
            return "bad FEN"
        if type(self.board) is not chess.Board or self.board.chess960:
            return "variant"
        if self.start is not None and self.start.status() & ~TOLERATED:
            return "bad FEN"
        if self.has_null_move:
            return "null move"
        if self.errors:
            error = self.errors[0]
            if isinstance(error, chess.AmbiguousMoveError):
                return "ambiguous move"
            is_illegal = isinstance(error, (chess.IllegalMoveError, chess.InvalidMoveError))
            return "illegal move" if is_illegal else "variant"
        if not self.moves:
            return "no moves"
        if self.result is None:
            return "unfinished"
        if self.board.is_checkmate():
            result = -1 if self.board.turn else 1
        else:
            result = 0 if self.board.is_stalemate() else self.result
        return "used" if result == self.result else "result contradicts board"


TOLERATED = (
    chess.STATUS_TOO_MANY_WHITE_PAWNS
    | chess.STATUS_TOO_MANY_BLACK_PAWNS
    | chess.STATUS_TOO_MANY_WHITE_PIECES
    | chess.STATUS_TOO_MANY_BLACK_PIECES
    | chess.STATUS_BAD_CASTLING_RIGHTS
    | chess.STATUS_INVALID_EP_SQUARE
    | chess.STATUS_TOO_MANY_CHECKERS
    | chess.STATUS_IMPOSSIBLE_CHECK
)
"""Problems of a starting position from which moves can be replayed nevertheless."""


class _Reader(chess.pgn.BaseVisitor[Reading]):
    """Reads the main line of a game."""

    def begin_game(self) -> None:
        self.reading = Reading()

    def begin_headers(self) -> chess.pgn.Headers:
        return self.reading.headers

    def visit_header(self, tagname: str, tagvalue: str) -> None:
        self.reading.headers[tagname] = tagvalue

    def visit_board(self, board: chess.Board) -> None:
        if self.reading.board is None:
            self.reading.start = board.copy()
            self.reading.comments.append([])
        self.reading.board = board

    def begin_variation(self) -> chess.pgn.SkipType:
        return chess.pgn.SKIP

    def visit_comment(self, comment: str) -> None:
        self.reading.comments[-1].append(comment)

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        self.reading.comments.append([])
        self.reading.has_null_move |= not move and not self.reading.errors

    def visit_result(self, result: str) -> None:
        if self.reading.movetext_result == "*":
            self.reading.movetext_result = result

    def handle_error(self, error: Exception) -> None:
        self.reading.errors.append(error)

    def result(self) -> Reading:
        return self.reading


def _make_node(comments: list[str]) -> chess.pgn.Game:
    """Return a node with comments, from which python-chess can read the eval and the clock."""
    node = chess.pgn.Game()
    node.comment = " ".join(comments)
    return node


def expected_eval(reading: Reading, ply: int) -> int | None:
    """Return the mover's eval, from the comments on the move before."""
    score = _make_node(reading.comments[ply]).eval() if ply else None
    if score is None or reading.start is None:
        return None
    white = score.white()
    value = white.score() if not white.is_mate() else 32000 if (white.mate() or 0) > 0 else -32000
    assert value is not None
    mover_is_white = (reading.start.turn == chess.WHITE) == (ply % 2 == 0)
    return max(-32000, min(32000, value)) * (1 if mover_is_white else -1)


def expected_clock(reading: Reading, ply: int) -> int | None:
    """Return the mover's last clock; before the first move, the base if the game has clocks."""
    if ply >= 2:
        seconds = _make_node(reading.comments[ply - 1]).clock()
        return None if seconds is None else min(int(seconds), 65534)
    has_clocks = any(_make_node(comments).clock() is not None for comments in reading.comments[1:])
    base = read_time_control(reading)[0] if has_clocks else None
    return None if base is None or base > 65534 else base


def read_time_control(reading: Reading) -> tuple[int | None, int | None]:
    """Return the base and increment in seconds, by the tag."""
    match = re.fullmatch(r"(\d+)(?:\+(\d+))?", reading.headers.get("TimeControl", ""))
    return (int(match[1]), int(match[2] or 0)) if match else (None, None)


def read(data: bytes) -> list[Reading]:
    """Read the games of PGN text; invalid UTF-8 is kept."""
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape")
    return list(iter(lambda: chess.pgn.read_game(text, Visitor=_Reader), None))


_GAPS = re.compile(
    r"\{[^{}]*\}|;[^\r\n]*|(?:(?<=[\r\n])|\A)%[^\r\n]*|[\s\x1c-\x1f]+|\.+|\$\d+|[!?+#=]+"
)
_VARIATION = re.compile(r"\{[^{}]*\}|;[^\r\n]*|(?<=[\r\n])%[^\r\n]*|[(){]")
_MARK = re.compile(
    r"(?<=[+=])[-/][-+/=]*|[-/]+[+=][-+/=]*|(?:e\.p\.|ep|mate|ch)(?![A-Za-z0-9\x80-\U0010ffff])"
)
_NULL = re.compile(r"--|Z0|0000|@@@@")
_SCORE = re.compile(
    r"(?:(?:1-0|0-1|1:0|0:1|1/2[-:]1/2|0[.,]5[-:]0[.,]5)(?![\d/])|1/2(?![-:/\d])|\*)"
)
_MOVE = re.compile(
    r"[PNBRQK]?@[a-h][1-8]|O-O(?:-O)?|0-0(?:-0)?"
    r"|(?![-x])[NBKRQ]?[a-h]?[1-8]?[-x]?[a-h][1-8](?:=?[nbrqkNBRQK])?"
)
_NUMBER = re.compile(r"(\d+)(\.*)")


def find_problem(movetext: str, numbered: bool) -> tuple[str, int] | None:
    """Return the first problem that python-chess skips silently, and the number of moves before it.

    `numbered` says whether the game starts from the standard position, so that the numbers of its
    moves are known.
    """
    at, moves, has_ended = 0, 0, False
    while at < len(movetext):
        before = movetext[at - 1] if at else " "
        if movetext[at] == "(" and moves:
            at = _variation_end(movetext, at)
            if at < 0:
                return "unclosed comment", moves
        elif found := _NULL.match(movetext, at):
            mark = _MARK.match(movetext, at)
            if mark is None:
                return "unreadable move" if has_ended else "null move", moves
            at = mark.end()
        elif found := _GAPS.match(movetext, at) or _SCORE.match(movetext, at):
            has_ended = has_ended or _SCORE.match(movetext, at) is not None
            at = found.end()
        elif not movetext.startswith("0-0", at) and (found := _NUMBER.match(movetext, at)):
            if (not found[2] and re.match(r"[A-Za-z0-9]", before)) or (
                numbered
                and (int(found[1]) != moves // 2 + 1 or (len(found[2]) > 2 and moves % 2 == 0))
            ):
                return "unreadable move", moves
            at = found.end()
        elif found := _MOVE.match(movetext, at):
            if has_ended:
                return "unreadable move", moves
            at, moves = found.end(), moves + 1
        elif found := _MARK.match(movetext, at):
            at = found.end()
        else:
            return "unclosed comment" if movetext[at] == "{" else "unreadable move", moves
    return None


_EVALS = re.compile(r"\[%(clk|eval)[\s\x1c-\x1f]+")
_DECIMALS = re.compile(r"(\[%eval [+-]?\d*\.\d\d)\d+")
_GLUED_NUMBER = re.compile(r"(?<![a-hNBKRQ0-9])(\d+)(?=[-x]?[a-h][1-8])")
_COMMENTS = re.compile(r"(\{[^}]*(?:\}|\Z)|;[^\n]*|(?m:^%[^\n]*))")
_LATIN_1 = {0xDCA0: " ", 0xDCD7: "x", 0xDC96: "-", 0xDC97: "-", 0xDC85: "."}
_LATIN_1_SIGNS = re.compile("\udcb1(?![A-Za-z0-9])"), re.compile(r"(?<!\S)\udcbd(?!\S)")
_NULL_IN_MARK = re.compile(r"(?<=[+=])--[-+/=]*|--[-/]*[+=][-+/=]*")
_SCORES = re.compile(r"(?:1/2|[01])\s*[-:]\s*(?:1/2|[01])")
_SHORT_DRAW = re.compile(r"(?<!\S)(?:1/2|0[.,]5[-:]0[.,]5|1/2:1/2)(?!\S)")


def read_one(tags: dict[str, bytes], movetext: bytes) -> tuple[str, Reading]:
    """Return the expected status of a game, and python-chess's reading of its tags and movetext.

    The text is first changed to forms that python-chess knows. Blank lines and marks such as `+--`,
    which it reads as null moves, are removed. Move numbers get a blank after them. Evaluations get
    one blank, two decimals, and a comma before the depth. Other spellings of a draw become
    `1/2-1/2`. Outside comments, bytes of Latin-1 and CP1252 become ASCII. A tag with two scores, or
    with one that no game ends in (`1/2-1`), means no result.
    """
    text = movetext.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"(?m)^\ufeff+|\ufeff+(?=\s|\Z)", "", text)
    parts = _COMMENTS.split(text)  # movetext, comment, movetext, ...
    parts[::2] = map(_read_latin_1, parts[::2])
    text = "".join(parts)
    problem = find_problem(text, "FEN" not in tags)
    if "FEN" not in tags and tags.get("SetUp", b"0") not in (b"0", b"", b"?", b"-"):
        return "bad FEN", Reading()
    result = tags.get("Result", b"*").strip().decode("latin-1")
    no_score = re.fullmatch(r"[-+=/:\d.,\s]*[+\d][-+=/:\d.,\s]*", result)
    scores = _SCORES.findall(result) if _SCORES.match(result) else []
    no_game = scores and re.sub(r"\s", "", scores[0]).replace(":", "-") not in RESULTS
    if result.rstrip("-") not in RESULTS and (no_score or no_game or len(scores) > 1):
        return "unfinished", Reading()
    text = _NULL_IN_MARK.sub("", text)
    text = re.sub(r"\n[\s\x1c-\x1f]*\n", "\n", text).strip()
    text = _DECIMALS.sub(r"\1", _EVALS.sub(r"[%\1 ", text))
    text = re.sub(r"(\[%eval [^\]\s]*)/(\d+\])", r"\1,\2", text)
    text = _SHORT_DRAW.sub("1/2-1/2", _GLUED_NUMBER.sub(r"\1 ", text))
    text = re.sub(r"(?<!\S)([01]):([01])(?!\S)", r"\1-\2", text)
    head = "".join(
        f'[{name} "{value.decode("utf-8", "surrogateescape")}"]\n' for name, value in tags.items()
    )
    data = f"{head}\n{text}\n\n".encode("utf-8", "surrogateescape")
    readings = read(data)
    reading = readings[0] if readings else Reading()
    is_later = problem is None or problem[1] > len(reading.moves)
    if is_later or reading.status in ("bad FEN", "variant"):
        return reading.status, reading
    assert problem is not None
    return problem[0], reading


def _read_latin_1(text: str) -> str:
    """Replace undecodable bytes of movetext by ASCII where their meaning is certain."""
    sign, half = _LATIN_1_SIGNS
    return half.sub("1/2", sign.sub("!", text.translate(_LATIN_1)))


def _variation_end(movetext: str, at: int) -> int:
    """Return the end of the variation at `at`, -1 if it or a comment in it never ends."""
    depth = 0
    for found in _VARIATION.finditer(movetext, at):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "{":
            return -1
        if depth == 0 and found[0] == ")":
            return found.end()
    return -1
