"""Odd and bad games inside a dump: read as they should be, or counted under their reason with their
place."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.job import ingest
from pipeline.pgn.comments import NO_CLOCK, NO_EVAL
from tests.engine.board.test_position_many_moves import BEFORE, MANY
from tests.pipeline import by_kernels, datasets
from tests.pipeline.by_kernels import Game

MOVES = (
    "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Bxc6 dxc6 5. O-O f6 6. d4 exd4 7. Nxd4 c5 8. Nb3 Qxd1 "
    "9. "
    "Rxd1 Bg4 10. f3 Be6"
)
GOOD = f'[Event "good"]\n[Result "1-0"]\n\n{MOVES} 1-0\n\n'
SHUFFLE = "Nf3 Nf6 Ng1 Ng8 "

NINE_SIXTY = "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9"

BAD = {
    # reason: games that are dropped for it, each given a tag and a result where it has none
    "illegal move": (
        "1. e4 e5 2. Ke3 1-0",
        "1. e4 e5 2. N@f3 1-0",
        "1. e4 e5 2. @e5 1-0",
        "1. e4 d5 2. exd5 c6 3. dxc6 Nf6 4. cxb7 Ng8 5. bxa8 1-0",
        "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. Kg1 1-0",
        "1. e4 e5 2. O-O 1-0",
        '[FEN "4k3/8/8/8/8/8/8/4K2R w - - 0 1"]\n\n1. O-O 1-0',
        '[FEN "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1"]\n\n1. e4 1-0',
        '[FEN "r3k2r/8/8/8/8/8/8/4K3 w KQkq - 0 1"]\n\n1. O-O-O 1-0',
    ),
    "ambiguous move": (
        "1. Nf3 a6 2. Nc3 a5 3. Nb5 a4 4. Nd4 1-0",
        '[FEN "4k3/8/8/8/8/R7/8/R3K3 w - - 0 1"]\n\n1. Ra2 1-0',
    ),
    "null move": ("1. e4 -- 2. d4 1-0", "1. e4 Z0 1-0", "1. e4 0000 1-0", "1. e4 @@@@ 1-0"),
    "variant": (
        '[Variant "Crazyhouse"]\n\n1. e4 1-0',
        f'[Variant "Chess960"]\n[FEN "{NINE_SIXTY}"]\n\n1. e4 1-0',
        f'[FEN "{NINE_SIXTY}"]\n\n1. e4 1-0',
    ),
    "bad FEN": (
        '[FEN "not a position"]\n\n1. e4 1-0',
        '[FEN ""]\n\n1. e4 1-0',
        '[FEN "8/8/8/8/8/8/8/4K3 w - - 0 1"]\n\n1. Ke2 1-0',
        '[FEN "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"]\n\n1. Ke2 1-0',
        '[FEN "P3k3/8/8/8/8/8/8/4K3 w - - 0 1"]\n\n1. Ke2 1-0',
        f'[FEN "{"8/" * 5000}"]\n\n1. Ke2 1-0',
        f'[FEN "{MANY}"]\n\n1. Qb1b2 1-0',
        f'[FEN "{BEFORE}"]\n\n1... gxh6 2. Qb1b2 1-0',
    ),
    "no moves": ("1-0", "{ nothing was played } 1-0"),
    "unfinished": (
        "1. e4 e5 *",
        "1. e4 e5",
        '[Result "*"]\n\n1. e4 e5',
        '[Result "?"]\n\n1. e4 e5',
    ),
    "result contradicts board": (
        "1. f3 e5 2. g4 Qh4# 1-0",
        "1. f3 e5 2. g4 Qh4# 1/2-1/2",
        '[FEN "7k/8/6Q1/8/8/8/8/K7 w - - 0 1"]\n\n1. Ka2 0-1'.replace("Ka2", "Qf7"),
    ),
    "too long": (SHUFFLE * 1025 + "1-0",),
    "unclosed comment": ("1. e4 e5 2. Nf3 { this never ends",),
}  # fmt: skip


def game_text(number: int, body: str) -> str:
    """Give a game its own tag in front of its others."""
    return f'[Event "{number}"]\n{"" if body.startswith("[") else chr(10)}{body}\n\n'


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_game_is_counted_under_its_reason_with_its_place(reason: str, tmp_path: Path) -> None:
    bodies = BAD[reason]
    texts = [GOOD]
    for number, body in enumerate(bodies):
        texts += [game_text(number, body), GOOD]
    path = tmp_path / "games.pgn"
    path.write_text("".join(texts))
    manifest = ingest([str(path)], tmp_path / "out", workers=1)
    games = datasets.games(tmp_path / "out")
    assert [game["dropped"] for game in games] == [None, *[reason, None] * len(bodies)]
    assert manifest["games"]["dropped"] == {reason: len(bodies)}
    dump = path.read_bytes()
    for game, text in zip(games, texts, strict=True):
        assert dump[game["offset"] : game["offset"] + game["length"]] == text.encode()
    assert manifest["positions"]["total"] == 20 * (len(bodies) + 1)


def read(tmp_path: Path, text: str | bytes) -> list[Game]:
    """Read the games of a text."""
    path = tmp_path / "games.pgn"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(by_kernels.games(path))


def wrapped(text: str, width: int = 80) -> str:
    """Wrap movetext at blanks, as old exports do."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


NESTED = "(" * 10_000 + "1. d4 { x ) } ;)\n $3 d5" + ")" * 10_000
SPELLINGS = {
    "plain": GOOD,
    "CRLF": GOOD.replace("\n", "\r\n"),
    "CR alone": GOOD.replace("\n", "\r"),
    "mixed line ends": GOOD.replace("\n", "\r\n", 2),
    "BOM": "\ufeff" + GOOD,
    "80 columns": GOOD.replace(MOVES, wrapped(MOVES)),
    "30 columns, CRLF": GOOD.replace(MOVES, wrapped(MOVES, 30)).replace("\n", "\r\n"),
    "indented": GOOD.replace("1. e4", "   1. e4"),
    "no move numbers": GOOD.replace(
        MOVES, " ".join(word for word in MOVES.split() if not word.endswith("."))
    ),
    "numbers without blanks": GOOD.replace(". ", "."),
    "numbers of Black": GOOD.replace("e5 2.", "{ x } 1... e5 2.").replace("Nc6 3.", "2... Nc6 3."),
    "escape line": GOOD.replace("5. O-O", "\n% 1. a4 { not a move\n5. O-O"),
    "rest of line": GOOD.replace("5. O-O", "; 1. a4 { not a move )\n5. O-O"),
    "rest of line, CR alone": GOOD.replace("5. O-O", "; 1. a4 { not a move )\n5. O-O").replace(
        "\n", "\r"
    ),
    "escape line in a variation": GOOD.replace("5. O-O", "( 5. d3\n% )\n Bd6 ) 5. O-O"),
    "no blank line after tags": GOOD.replace("\n\n1.", "\n1."),
    "two blank lines after tags": GOOD.replace("\n\n1.", "\n\n\n1."),
    "marks": GOOD.replace("Nf3", "Nf3!?")
    .replace("Bb5", "Bb5 $14 $200")
    .replace("Qxd1", "Qxd1+!")
    .replace("f6", "f6+-"),
    "comments": GOOD.replace("e5 2.", 'e5 {[Event "no"]\n[Event "no"]} { ; } {%} {(} 2.').replace(
        "a6", "a6 {1. e4 1-0}"
    ),
    "variations": GOOD.replace(
        "2. Nf3", "2. Nf3 (2. f4 exf4 (2... d5 {)} 3. exd5) 3. Nf3) (2. d4)"
    ),
    "10,000 deep variations": GOOD.replace("2. Nf3", f"2. Nf3 {NESTED}"),
    "1 MB comment": GOOD.replace("2. Nf3", "2. Nf3 {" + "word (x; 1. a4 \n" * 65_000 + "}"),
    "latin-1": GOOD.replace('"good"', '"Müller – Łódź"')
    .replace("2. Nf3", "2. Nf3 {schön}")
    .encode("cp1252", "replace"),
    "zeros castle": GOOD.replace("O-O", "0-0"),
    "long algebraic": GOOD.replace("Nf3", "Ng1-f3")
    .replace("e4 e5", "e2-e4 e7-e5")
    .replace("Bxc6", "Bb5xc6"),
    "UCI": GOOD.replace("Nf3", "g1f3")
    .replace("e4 e5", "e2e4 e7e5")
    .replace("Bxc6", "b5c6")
    .replace("O-O", "e1g1"),
    "no tags": f"{MOVES} 1-0\n",
    "result by the tag alone": GOOD.replace("Be6 1-0", "Be6"),
    "result by the moves alone": GOOD.replace('[Result "1-0"]\n', ""),
    "broken tags": GOOD.replace("\n\n1.", '\n[White "no end\n[]\n[ ]\n["x"]\n[Black]\n\n1.'),
    "quotes in tags": GOOD.replace('"good"', '"the \\"good\\" ] one"'),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_changes_no_move(spelling: str, tmp_path: Path) -> None:
    (plain,) = read(tmp_path, GOOD)
    (game,) = read(tmp_path, SPELLINGS[spelling])
    assert (game.status, game.plies, game.result) == ("used", 20, 1)
    assert game.moves == plain.moves
    assert len(plain.moves) == 20


@pytest.mark.parametrize(
    "between", ["\n", "\r", "\r\n", "\n\n\n\n", "\n \t\n", "\n; a remark\n\n% another\n\n"]
)
def test_games_are_told_apart(between: str, tmp_path: Path) -> None:
    end = "\r" if between == "\r" else "\n"
    games = read(tmp_path, between.join([GOOD.strip().replace("\n", end)] * 3))
    assert [game.plies for game in games] == [20, 20, 20]


def test_games_without_tags_are_told_apart_by_a_blank_line(tmp_path: Path) -> None:
    assert [
        game.plies for game in read(tmp_path, f"{MOVES} 1-0\n\n1. d4 1/2-1/2\n\n1. c4 c5 0-1")
    ] == [20, 1, 2]


def test_headers_only_games_are_counted(tmp_path: Path) -> None:
    games = read(tmp_path, '[Event "a"]\n[Result "1-0"]\n\n\n[Event "b"]\n\n[Event "c"]\n' + GOOD)
    assert [game.status for game in games][-1] == "used"
    assert {game.status for game in games[:-1]} == {"no moves"}
    assert len(games) >= 3


def test_games_after_a_comment_that_never_ends_are_saved(tmp_path: Path) -> None:
    games = read(tmp_path, GOOD.replace("2. Nf3", "2. Nf3 { never closed") + GOOD * 3)
    assert [game.status for game in games] == ["unclosed comment", "used", "used", "used"]


def test_a_game_of_600_plies_is_used_and_its_repetitions_counted(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(SHUFFLE * 150 + "1/2-1/2\n")
    (chunk,) = read_chunks([Source(str(path))], 1 << 20)
    _, rows = by_kernels.replay_chunk(chunk)
    assert len(rows.label) == 600
    assert rows.repetition.tolist() == [ply // 4 for ply in range(600)]
    assert rows.halfmove.tolist() == [min(ply, 255) for ply in range(600)]
    assert set(rows.plies.tolist()) == {600}


NOTES = {
    # comment after White's first move: (White's centipawns, White's seconds at his next move)
    "[%eval 0.17] [%clk 0:03:00]": (17, 180), "[%clk 1:02:03.7]": (None, 3723),
    "[%eval -0.07]": (-7, None), "[%eval #5]": (32000, None), "[%eval #-12]": (-32000, None),
    "[%eval 1]": (100, None), "[%eval .5]": (50, None), "[%eval +0.30,22]": (30, None),
    "[%eval 999.99]": (32000, None), "[%eval -99999999999]": (-32000, None),
    "[%clk 99:00:00]": (None, 65534), "[%clk 0:00:00]": (None, 0), "[%eval 0]": (0, None),
    "[%clk -]": (None, None), "[%clk]": (None, None), "[%eval]": (None, None),
    "[%eval #]": (None, None), "[%eval -]": (None, None), "[%eval x]": (None, None),
    "[%emt 0:00:05]": (None, None), "%clk": (None, None), "eval 0.5 clk 0:01:00": (None, None),
    "[%csl Ga1][%clk 0:00:07][%cal Ra1a8]": (None, 7), "[%clk 0:01:00]\n[%eval\n0.3]": (30, 60),
    "[%clk\n0:03:00]": (None, 180), "[%clk\r\n0:03:00] [%eval\r\n-1.5]": (-150, 180),
    "[%eval-0.31]": (None, None), "[%clk0:01:00]": (None, None),
    "[%eval 0.5] [%evaluation 3] [%eval x]": (50, None),
    "[%eval 0.5] [%eval 0.7] [%clk 0:00:05] [%clk 0:00:04]": (50, 5), "[%eval 0.5": (None, None),
    "%eval 0.5": (None, None), "[%clk 0:05]": (None, None), "[%clk 1:2:3:4]": (None, None),
    "[%eval 0.5 ]": (None, None), "[%eval #0]": (-32000, None),
}  # fmt: skip


def test_joined_files_keep_their_first_tag_behind_a_byte_order_mark(tmp_path: Path) -> None:
    texts = [
        f'\ufeff[Event "game {number}"]\n[Result "1-0"]\n\n{MOVES} 1-0\n' for number in range(100)
    ]
    for between in ("", "\n", "\n\n"):
        games = read(tmp_path, between.join(texts))
        assert [game.event for game in games] == [b"game %d" % number for number in range(100)]
        assert {game.plies for game in games} == {20}


@pytest.mark.parametrize("comment", NOTES)
def test_clocks_and_evals_are_read_however_odd(comment: str, tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(f'[Event "x"]\n[TimeControl "180+2"]\n\n1. e4 {{{comment}}} e5 2. d4 d5 1-0\n')
    (chunk,) = read_chunks([Source(str(path))], 1 << 20)
    _, rows = by_kernels.replay_chunk(chunk)
    white, seconds = NOTES[comment]
    assert rows.eval.tolist() == [NO_EVAL, NO_EVAL if white is None else -white, NO_EVAL, NO_EVAL]
    first = NO_CLOCK if seconds is None else 180
    assert rows.clock.tolist() == [first, first, NO_CLOCK if seconds is None else seconds, NO_CLOCK]


CONTROLS = {
    "600+5": (600, 5), "300": (300, 0), "-": (None, None), "?": (None, None),
    "40/9000": (None, None), "1/259200": (None, None), "0+1": (0, 1), "99999+0": (None, None),
    "60+300": (None, None), "": (None, None),
}  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS)
def test_time_controls_are_seconds_or_null(control: str, tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(GOOD.replace("\n\n1.", f'\n[TimeControl "{control}"]\n\n1.'))
    ingest([str(path)], tmp_path / "out", workers=1)
    table = datasets.table(tmp_path / "out")
    assert {(row["base"], row["increment"]) for row in table.to_pylist()} == {CONTROLS[control]}
    assert not np.any(table["clock"].is_valid().to_numpy())
