"""Put foreign characters at all kinds of places in games, and read the result as a human would.

`CHARACTERS` lists characters, with the ASCII texts that a human may take each for. `alter_game`
puts them into valid games. `read_as_human` reads a game strictly: it rejects a game with any word
that is not a move, number, mark or result. Nothing of the pipeline is imported.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import chess

SIGN = "$14"


@dataclass(frozen=True, slots=True)
class Character:
    """A foreign character, and the ASCII texts that a human may take it for."""

    kind: str
    data: bytes
    reads_as: tuple[str, ...] = ()


def _characters(kind: str, text: str, *reads_as: str) -> list[Character]:
    return [Character(kind, char.encode(), reads_as) for char in text]


def _paired_characters(kind: str, text: str, ascii_text: str) -> list[Character]:
    return [
        Character(kind, char.encode(), (plain,))
        for char, plain in zip(text, ascii_text, strict=True)
    ]


CHARACTERS = [
    *_paired_characters("figurine", "♔♕♖♗♘♚♛♜♝♞", "KQRBNKQRBN"),
    *_characters("figurine", "♙♟", "P", ""),
    # pieces in German, Dutch, French, Spanish, Italian, Polish, Czech and Hungarian
    *_characters("national letter", "SLTDCFAJHGWVŁ"),
    *_characters("lower-case piece", "nrqk"),
    # knight, bishop, queen and rook in Russian, of which two look like K and C
    *_characters("Cyrillic piece", "КСФЛ"),
    *_paired_characters("look-alike", "ОаесΝΒΟ", "OaecNBO"),
    *_characters("invisible", "\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    *_characters("invisible", "\u200e\u200f\u202a\u202c\u2066", ""),
    *_characters("space", "\u00a0\u2009\u202f\u3000\u2028\u0085", " "),
    *_characters("dash", "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63", "-"),
    *_paired_characters("quote", "“”„″", '""""'),
    *_characters("quote", "‘’«»′", "'"),
    *_characters("ellipsis", "…", "...", " ... "),
    *_paired_characters("fullwidth", "ＮｆＯ３１－＝＋．［］", "NfO31-=+.[]"),
    *_characters("capture", "×", "x"),
    *_characters("accent", "\u0301\u0308\u20e3éÑ"),
    *_characters("superscript", "²³¹"),
    *_characters("other digit", "٣३"),
    *_characters("fraction", "½", "1/2"),
    *_characters("fraction", "¼"),
    *_characters("sign", "±∓⩲∞□→△", SIGN, f" {SIGN} "),
    *_characters("sign", "†‡", "+", "#", f" {SIGN} "),
    *_characters("symbol", "№●✓😀€"),
    *(Character("control byte", bytes([byte])) for byte in (*range(9), *range(14, 28), 127)),
    *(
        Character("control space", bytes([byte]), (" ", "\n"))
        for byte in (9, 10, 11, 12, 13, 28, 29, 30, 31)
    ),
    Character("Latin-1", b"\xe9"),
    Character("Latin-1", b"\xa0", (" ",)),
    Character("Latin-1", b"\xbd", ("1/2",)),
    Character("Windows-1252", b"\x96", ("-",)),
    Character("Windows-1252", b"\x92", ("'",)),
    Character("Windows-1252", b"\x85", ("...", " ... ", " ")),
    Character("Windows-1252", b"\x93", ('"',)),
    Character("UTF-16", b"\xff\xfe"),
    Character("UTF-16", b"\x00N"),
    Character("UTF-16", b"\x58\x26"),
    *(
        Character("invalid UTF-8", data)
        for data in (
            b"\xc1\xa6", b"\xc0\xad", b"\xe0\x81\x8e", b"\xed\xa0\x80", b"\xf5\x80\x80\x80",
            b"\xe2\x99", b"\x80",
        )
    ),
]  # fmt: skip


def _write_game(tags: str, movetext: str) -> str:
    return f'[Event "altered"]\n{tags}\n{movetext}\n\n'


PAWNS_AND_KINGS = '[SetUp "1"]\n[FEN "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1"]\n'
GAMES = {
    "a pawn's move without the letter": _write_game(
        '[Result "1-0"]\n', "1. Nf3 Nf6 2. Nc3 Nc6 1-0"
    ),
    "captures": _write_game(
        '[White "Alpha, One"]\n[Result "0-1"]\n',
        "1. e4 d5 2. exd5 Qxd5 3. Nc3 Qa5 4. b4 Qxb4\n5. Nge2 Nbd7 6. Rb1 0-1",
    ),
    "castling and a draw": _write_game(
        '[Result "1/2-1/2"]\n[WhiteElo "1512"]\n',
        "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O d6 5. c3 Bg4 6. d3 Qd7 7. Nbd2 O-O-O 1/2-1/2",
    ),
    "promotion and checks": _write_game(
        '[Result "1-0"]\n[SetUp "1"]\n[FEN "4k3/1P4P1/8/8/8/8/p7/1N2K2R w K - 0 1"]\n',
        "1. b8=Q+ Kd7 2. O-O axb1=N 3. Rf7+ Kc6 4. g8=R!? Nd2 5. Rc8# 1-0",
    ),
    "comments and marks": _write_game(
        '[Result "1-0"]\n[TimeControl "180+2"]\n',
        "1. e4 { [%eval 0.17] [%clk 0:03:00] } 1... e5 { [%eval -0.25] [%clk 0:02:58] }\n"
        "2. Nf3!? $14 (2. f4 exf4 {good} 3. Nf3) 2... Nc6 {Nf3 was a word} 3. Bb5 a6 ; to the "
        "end\n4. Ba4 Nf6 1-0",
    ),
    "a position whose moves are legal from the start": _write_game(
        f'[Result "1-0"]\n{PAWNS_AND_KINGS}', "1. e4 e5 2. d4 d5 1-0"
    ),
    "a position without SetUp": _write_game(
        '[Result "0-1"]\n[FEN "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBN1 w Qkq - 3 5"]\n',
        "5. e4 e5 6. Nf3 Nc6 0-1",
    ),
}

_SEGMENTS = re.compile(
    r"""(?P<comment_brace>[{}]) | (?P<variation_bracket>[()]) | (?P<nag>\$\d+)
      | (?P<result>1-0|0-1|1/2-1/2) | (?P<number>\d+\.+) | (?P<castling>O-O(?:-O)?)
      | (?P<piece>[NBRQK](?=[a-hx1-8])) | (?P<promotion>=[QRBN])
      | (?P<capture>x) | (?P<file>[a-h](?=[1-8x])|[a-h](?=[a-h][1-8])) | (?P<rank>(?<=[a-h])[1-8])
      | (?P<check>[+\#]) | (?P<mark>[!?]+) | (?P<line_end>\n) | (?P<space>[ ]) | (?P<word>\S+)""",
    re.VERBOSE,
)
_TAG_SEGMENTS = re.compile(
    r"""(?P<tag_bracket>[\[\]]) | (?P<tag_name>(?<=\[)\w+) | (?P<tag_quote>")
      | (?P<tag_line_end>\n) | (?P<tag_space>[ ]) | (?P<tag_value>[^"\]\n]+)""",
    re.VERBOSE,
)
_MEANINGFUL_KINDS = frozenset(
    ("castling", "piece", "promotion", "capture", "file", "rank", "result")
)


def split_game(text: str) -> list[tuple[str, int, int]]:
    """Split a valid game into segments (kind, start, end)."""
    segments, movetext = [], text.index("]\n\n") + 2
    for match in _TAG_SEGMENTS.finditer(text, 0, movetext):
        kind = str(match.lastgroup)
        is_fen = kind == "tag_value" and "[FEN" in text[match.start() - 6 : match.start()]
        segments.append(("FEN_value" if is_fen else kind, match.start(), match.end()))
    inside = ""
    for match in _SEGMENTS.finditer(text, movetext):
        kind, char = str(match.lastgroup), match[0]
        if char in ("}", ")", "\n") and inside != ("variation" if char == "}" else ""):
            ends = (inside, char) in (("comment", "}"), ("variation", ")"), ("rest", "\n"))
            inside = "" if ends else inside
        elif char == ";":
            inside = "rest"
        name = f"{inside}_{kind}" if inside and kind != "comment_brace" else kind
        segments.append((name, match.start(), match.end()))
        if char in ("{", "(") and not inside:
            inside = "comment" if char == "{" else "variation"
    return segments


@dataclass(frozen=True, slots=True)
class Alteration:
    """A game with a foreign character in it."""

    game: str
    character: Character
    place: str
    data: bytes
    readings: tuple[str, ...]
    """The game with each ASCII text in place of the character."""
    touches_move: bool
    """Whether the character touches a move, a result or a position, so that it must not be ignored.
    """
    in_tags: bool
    at_end: bool
    """Whether the character touches the next game."""


def _list_places(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Yield places in a game: name, start and end of the replaced text, whether to add blanks."""
    for kind, start, end in split_game(text):
        yield f"before {kind}", start, start, False
        yield f"after {kind}", end, end, False
        for at in range(start, end):
            yield f"instead of {kind}", at, at + 1, False
            if at > start:
                yield f"inside {kind}", at, at, False
        if kind in ("number", "piece", "file", "castling", "result", "nag", "comment_brace"):
            yield f"alone before {kind}", start, start, True
    yield "between games", len(text), len(text), False


def alter_game(name: str, characters: list[Character]) -> Iterator[Alteration]:
    """Yield a game with each character at a random place of each kind."""
    text, rng = GAMES[name], random.Random(name)
    kinds = {at: kind for kind, start, end in split_game(text) for at in range(start, end)}
    movetext, places = text.index("]\n\n") + 2, defaultdict(list)
    for place in _list_places(text):
        places[place[0]].append(place)
    for character, same_kind in product(characters, places.values()):
        kind, first, last, has_blanks = rng.choice(same_kind)
        blank = " " if has_blanks else ""
        before, after = text[:first] + blank, blank + text[last:]
        neighbors = {kinds.get(at, "") for at in (first - 1, *range(first, last), last)}
        yield Alteration(
            name,
            character,
            kind,
            before.encode() + character.data + after.encode(),
            tuple(before + reading + after for reading in character.reads_as),
            touches_move=not neighbors.isdisjoint(_MEANINGFUL_KINDS) or neighbors == {"FEN_value"},
            in_tags=first < movetext,
            at_end=last >= len(text) - 2,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A game as read: its starting position, moves and White's result."""

    start: str
    moves: tuple[str, ...]
    """Moves in UCI notation."""
    result: int


RESULTS = {"1-0": 1, "0-1": -1, "1/2-1/2": 0, "1/2": 0}
_TAG = re.compile(r'\s*\[\s*(\w+)\s*"([^"\n]*)"\s*\]')
_COMMENT = re.compile(r"\{[^}]*\}|;[^\n]*|(?m:^%[^\n]*)")
_VARIATION = re.compile(r"\([^()]*\)")
_WORD = re.compile(
    r"""(?P<number>\d+\s*\.*|\.+) | (?P<mark>[+-]{2}|[+-]/[+-]|[+=]/?[+=])
      | (?P<nag>\$\d+|[!?+\#]{1,2}(?=\s|\$|$))
      | (?P<san>(?:[Oo0]-[Oo0](?:-[Oo0])?
                  |[PNBRQK]?[a-h]?[1-8]?[x-]?[a-h][1-8](?:=?[QRBNqrbn]|\([QRBN]\))?)
        (?:[+\#]|-[+])?(?:[!?]{1,2})?(?=\s|\$|$|\.?$|[({]))""",
    re.VERBOSE,
)


def _read_words(movetext: str) -> list[str] | None:
    """Return the moves and results in movetext, None if it has an unknown word."""
    text = _COMMENT.sub(" ", movetext)
    while (shorter := _VARIATION.sub(" ", text)) != text:
        text = shorter
    words, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        result = re.compile(r"(1-0|0-1|1/2(?:-1/2)?|\*)(?=\s|$)").match(text, at)
        match = result or _WORD.match(text, at)
        if match is None:
            return None
        if result or match.lastgroup == "san":
            words.append(match[0])
        at = match.end()
    return words


@cache
def _play(fen: str | None, words: tuple[str, ...], tag: str) -> Reading | None:
    """Play moves and results; return None if a move is illegal or there is no result."""
    try:
        board = chess.Board(fen or chess.STARTING_FEN)
    except ValueError:
        return None
    if not board.king(chess.WHITE) or board.status() & ~chess.STATUS_BAD_CASTLING_RIGHTS:
        return None
    start, moves, result = board.fen(), [], RESULTS.get(tag)
    for word in words:
        if word in RESULTS:
            result = RESULTS[word] if result is None else result
        elif word != "*":
            word = word.replace("0-0-0", "O-O-O").replace("0-0", "O-O")
            word = re.sub(r"^P(?=[a-h])|[()!?+#]|\$\d+", "", word)
            try:
                move = board.parse_san(word)
            except ValueError:
                return None
            moves.append(move.uci())
            board.push(move)
    return Reading(start, tuple(moves), result) if moves and result is not None else None


def read_as_human(text: str) -> Reading | None:
    """Return the reading of a game's text, None if any part of it is unreadable."""
    tags, at = {}, 0
    while match := _TAG.match(text, at):
        tags[match[1].lower()] = match[2]
        at = match.end()
    words = _read_words(text[at:])
    if words is None or ("setup" in tags and tags["setup"] == "1" and "fen" not in tags):
        return None
    return _play(tags.get("fen"), tuple(words), tags.get("result", ""))


def read_values(text: bytes) -> tuple[set[int], set[int]]:
    """Return White's centipawns and the seconds in the complete annotations of a text."""
    evals = re.findall(rb"\[%eval[\s\x1c-\x1f]+([+-]?\d*\.?\d+)\]", text)
    clocks = re.findall(rb"\[%clk[\s\x1c-\x1f]+(\d):(\d\d):(\d\d)\]", text)
    return {round(float(value) * 100) for value in evals}, {
        int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in clocks
    }
