"""Read games in many spellings as they are written, or drop them with a reason."""

import textwrap
from pathlib import Path
from time import process_time

import pytest

from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.games import parse_result, read_time_control
from pipeline.ingest.job import ingest
from pipeline.pgn.text import NO_CLOCK, NO_EVAL
from pipeline.validation.verify import verify_dataset
from tests.conftest import shared_data
from tests.engine.board.test_position_many_moves import BEFORE, MANY
from tests.pipeline import by_kernels, datasets
from tests.pipeline.by_kernels import Game

ASCII_MOVES = (
    "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d4 exd4 6. e5 d5 7. exd6 O-O 8. dxc7 Qxc7"
)
HEAD = '[Event "a"]\n[Result "1-0"]\n\n'
VALID_GAME = f"{HEAD}{ASCII_MOVES} 1-0\n\n"
MOVES = (
    "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Bxc6 dxc6 5. O-O f6 6. d4 exd4 7. Nxd4 c5 8. Nb3 Qxd1 "
    "9. Rxd1 Bg4 10. f3 Be6"
)
GAME = f'[Event "good"]\n[Result "1-0"]\n\n{MOVES} 1-0\n\n'
REPEATED_MOVES = "Nf3 Nf6 Ng1 Ng8 "
CHESS960_FEN = "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9"


def read_games(tmp_path: Path, text: str | bytes) -> list[Game]:
    path = tmp_path / "games.pgn"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(by_kernels.games(path))


DROPPED = {
    # reason: games that are dropped for it; the test adds a tag and a result to those without
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
        f'[Variant "Chess960"]\n[FEN "{CHESS960_FEN}"]\n\n1. e4 1-0',
        f'[FEN "{CHESS960_FEN}"]\n\n1. e4 1-0',
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
    "too long": (REPEATED_MOVES * 1025 + "1-0",),
    "unclosed comment": (
        "1. e4 e5 2. Nf3 { this never ends", "1. e4 (1. d4 d5",
        "1. e4 { good e5 2. Nf3 { ok } Nc6 1-0",
    ),
    "unreadable move": (
        "1. nf3 nf6", "1. e4 nf6", "1. Sf3 Sf6", "1. e4 e5 2. Dh5", "1. Pf3", "1. Кf3", "1. е4",
        "1. N\u200bf3", "1. Nf\u200b3", "1. N f3", "1. e4 e5 2. N f3", "1. e 4", "1. e4 e5 2. B c4",
        "1. e4\u200bd5", "1. e4 \u0301e5", "1. e4 e5 2. ♙Nf3", "1. e4 o-o", "1. e4 e5 - 2. Nf3",
        "1. e4 e5, 2. Nf3", "1. e4 e5 ) 2. Nf3", "1. e4 e5 } 2. Nf3", "(1. d4) 1. e4 e5",
        "1. e4 x 1... e5", "1. xe4", "1. e4 $ e5", "1. e4 % e5", "1. e4 [%clk 0:01:00] e5",
        "1. e4 e5 better 2. Nf3", "1. e4\x00 e5", "1. e4 e5 2. Nf3 Nc6 4. Bc4", "12. e4 e5",
        "1. e4 e5 2... Nf3", "1. e4 e5 1/2-1/2 2. Nf3", "1. e4 e5 1-0 1. d4 d5",
        "1. e4 e5 2. Nf32 Nc6", '1. e4 e5\n[Site "?"]\n2. Nf3',
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", DROPPED)
def test_an_invalid_game_is_dropped_with_its_reason_and_the_others_kept(
    reason: str, tmp_path: Path
) -> None:
    texts = [VALID_GAME]
    for body in DROPPED[reason]:
        blank = "" if body.startswith("[") else "\n"
        end = " 1-0" if reason == "unreadable move" else ""
        texts += [f'[Event "bad"]\n{blank}{body}{end}\n\n', VALID_GAME]
    games = read_games(tmp_path, "".join(texts))
    assert [game.status for game in games] == ["used", *[reason, "used"] * len(DROPPED[reason])]
    assert [game.length for game in games] == [len(text.encode()) for text in texts]
    assert {game.plies for game in games[::2]} == {16}


NESTED = "(" * 10_000 + "1. d4 { x ) } ;)\n $3 d5" + ")" * 10_000
LAYOUTS = {
    "plain": GAME,
    "CRLF": GAME.replace("\n", "\r\n"),
    "CR alone": GAME.replace("\n", "\r"),
    "mixed line ends": GAME.replace("\n", "\r\n", 2),
    "BOM": "\ufeff" + GAME,
    "80 columns": GAME.replace(MOVES, textwrap.fill(MOVES, 80, break_on_hyphens=False)),
    "30 columns, CRLF": GAME.replace(
        MOVES, textwrap.fill(MOVES, 30, break_on_hyphens=False)
    ).replace("\n", "\r\n"),
    "indented": GAME.replace("1. e4", "   1. e4"),
    "no move numbers": GAME.replace(
        MOVES,
        " ".join(word for word in MOVES.split() if not word.endswith(".")),
    ),
    "numbers without blanks": GAME.replace(". ", "."),
    "numbers of Black": GAME.replace("e5 2.", "{ x } 1... e5 2.").replace("Nc6 3.", "2... Nc6 3."),
    "escape line": GAME.replace("5. O-O", "\n% 1. a4 { not a move\n5. O-O"),
    "rest of line": GAME.replace("5. O-O", "; 1. a4 { not a move )\n5. O-O"),
    "rest of line, CR alone": GAME.replace("5. O-O", "; 1. a4 { not a move )\n5. O-O").replace(
        "\n", "\r"
    ),
    "escape line in a variation": GAME.replace("5. O-O", "( 5. d3\n% )\n Bd6 ) 5. O-O"),
    "no blank line after tags": GAME.replace("\n\n1.", "\n1."),
    "two blank lines after tags": GAME.replace("\n\n1.", "\n\n\n1."),
    "marks": GAME.replace("Nf3", "Nf3!?")
    .replace("Bb5", "Bb5 $14 $200")
    .replace("Qxd1", "Qxd1+!")
    .replace("f6", "f6+-"),
    "comments": GAME.replace("e5 2.", 'e5 {[Event "no"]\n[Event "no"]} { ; } {%} {(} 2.').replace(
        "a6", "a6 {1. e4 1-0}"
    ),
    "variations": GAME.replace(
        "2. Nf3", "2. Nf3 (2. f4 exf4 (2... d5 {)} 3. exd5) 3. Nf3) (2. d4)"
    ),
    "10,000 deep variations": GAME.replace("2. Nf3", f"2. Nf3 {NESTED}"),
    "1 MB comment": GAME.replace("2. Nf3", "2. Nf3 {" + "word (x; 1. a4 \n" * 65_000 + "}"),
    "latin-1": GAME.replace('"good"', '"Müller – Łódź"')
    .replace("2. Nf3", "2. Nf3 {schön}")
    .encode("cp1252", "replace"),
    "zeros castle": GAME.replace("O-O", "0-0"),
    "long algebraic": GAME.replace("Nf3", "Ng1-f3")
    .replace("e4 e5", "e2-e4 e7-e5")
    .replace("Bxc6", "Bb5xc6"),
    "UCI": GAME.replace("Nf3", "g1f3")
    .replace("e4 e5", "e2e4 e7e5")
    .replace("Bxc6", "b5c6")
    .replace("O-O", "e1g1"),
    "no tags": f"{MOVES} 1-0\n",
    "result by the tag alone": GAME.replace("Be6 1-0", "Be6"),
    "result by the moves alone": GAME.replace('[Result "1-0"]\n', ""),
    "broken tags": GAME.replace("\n\n1.", '\n[White "no end\n[]\n[ ]\n["x"]\n[Black]\n\n1.'),
    "quotes in tags": GAME.replace('"good"', '"the \\"good\\" ] one"'),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_a_game_changes_no_move(name: str, tmp_path: Path) -> None:
    (plain,), (game,) = read_games(tmp_path, GAME), read_games(tmp_path, LAYOUTS[name])
    assert (game.status, game.plies, game.result) == ("used", 20, 1)
    assert game.moves == plain.moves


GAPS = ("\n", "\r\n", "\n\n\n\n", "\n \t\n", "\n; a remark\n\n% another\n\n")
TEXTS_OF_GAMES = {
    # name: text, and the plies of each game in it
    **{f"{gap!r} between": (gap.join([GAME.strip()] * 3), [20] * 3) for gap in GAPS},
    "CR alone": ("\r".join([GAME.strip().replace("\n", "\r")] * 3), [20] * 3),
    "byte-order marks": ("\n".join(["\ufeff" + GAME.strip()] * 100), [20] * 100),
    "byte-order marks without line ends": (
        "".join(["\ufeff" + GAME.strip() + "\n"] * 3),
        [20] * 3,
    ),
    "headers only": (
        '[Event "a"]\n[Result "1-0"]\n\n\n[Event "b"]\n\n[Event "c"]\n' + GAME,
        [0, 0, 20],
    ),
    "no tags": (f"{MOVES} 1-0\n\n1. d4 1/2-1/2\n\n1. c4 c5 0-1", [20, 1, 2]),
    "tags end a game without a result": (f"{HEAD}1. e4\n\n{HEAD}1. d4 1-0\n", [1, 1]),
    "a result and a blank line": ("1. e4 e5 1-0\n\n1. d4 1-0\n", [2, 1]),
    "no tags and no result": ("prose\n\n1. e4 e5 1-0\n\nmore prose\n\n1. d4 1-0\n", [0, 2, 0, 1]),
    "any tag after a result": ('1. e4 1-0\n[White "a"]\n\n1. d4 d5 1-0\n', [1, 2]),
    "a blank line of no-break spaces": (f"{HEAD}1. e4 1-0\n\u00a0\n{HEAD}1. d4 d5 1-0\n", [1, 2]),
    "a remark that ends in a result": (
        f"{HEAD}1. e4 e5 2. Nf3 ; remark 1-0\n\n2... Nc6 3. Bc4 1-0\n",
        [5],
    ),
    "a forfeit": (f"{HEAD}1-0\n{HEAD}1. d4 d5 1-0\n", [0, 2]),
    "a diagram": (f"{HEAD}1. e4 e5\n\n[Diagram 1]\n\n2. Nf3 1-0\n\n{HEAD}1. d4 1-0\n", [2, 1]),
    "an open comment and a mark at the end": (
        f"{HEAD}1. e4 {{ open\n\n{HEAD}1. d4 d5 1-0\n\ufeff",
        [1, 2],
    ),
    "indented tags": (f"{HEAD}1. e4 1-0\n\n{HEAD}1. d4 d5 1-0\n".replace("[", "  ["), [1, 2]),
}


@pytest.mark.parametrize("name", TEXTS_OF_GAMES)
def test_texts_are_split_into_games(name: str, tmp_path: Path) -> None:
    text, plies = TEXTS_OF_GAMES[name]
    assert [game.plies for game in read_games(tmp_path, text)] == plies


def test_repetitions_in_a_game_of_600_plies_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(REPEATED_MOVES * 150 + "1/2-1/2\n")
    (chunk,) = read_chunks([Source(str(path))], 1 << 20)
    _, rows = by_kernels.replay_chunk(chunk)
    assert len(rows.label) == 600
    assert rows.repetition.tolist() == [ply // 4 for ply in range(600)]
    assert rows.halfmove.tolist() == [min(ply, 255) for ply in range(600)]
    assert set(rows.plies.tolist()) == {600}


TRANSLATED = {
    "figurines": ASCII_MOVES.replace("N", "♘").replace("B", "♝").replace("Q", "♛"),
    "figurines as glyphs": ASCII_MOVES.replace("N", "♘\ufe0e").replace("e5 2", "♟\ufe0ee5 2"),
    "pawns": ASCII_MOVES.replace("e4", "♙e4").replace("exd4", "♟exd4"),
    "no-break spaces": ASCII_MOVES.replace(" ", "\u00a0"),
    "other spaces": ASCII_MOVES.replace(". ", ".\u2009").replace(" ", "\u3000"),
    "zero width between tokens": ASCII_MOVES.replace(" ", " \u200b").replace("Nf3 ", "Nf3\u200d "),
    "dashes": ASCII_MOVES.replace("O-O", "O–O")
    .replace("e4 e5", "e2−e4 e7‑e5")
    .replace("Nf3", "Ng1—f3"),
    "an ellipsis": ASCII_MOVES.replace("e4 e5", "e4 1… e5"),
    "a sign of capture": ASCII_MOVES.replace("x", "×"),
    "signs of evaluation": ASCII_MOVES.replace("Nf3", "Nf3 ⩲")
    .replace("Bc4", "Bc4±")
    .replace("exd4", "exd4 ∞"),
    "marks": ASCII_MOVES.replace("Nf3", "Nf3 --+")
    .replace("Bc4", "Bc4+--")
    .replace("e5 6", "e5 -/+ 6")
    .replace("O-O", "O-O ="),
    "words": ASCII_MOVES.replace("exd6", "exd6e.p.")
    .replace("dxc7", "dxc7 ep")
    .replace("Qxc7", "Qxc7ch"),
    "blank lines": ASCII_MOVES.replace(" 3.", "\n\n3.").replace(" 6.", "\n \n\n6."),
    "a blank line after a comment": "{ Annotated }\n\n" + ASCII_MOVES,
    "a comment over blank lines": ASCII_MOVES.replace(
        " 3.", ' { one\n\ntwo\n\n[Event "no"]\n[FEN "x"]\n\n1. d4 } 3.'
    ),
    "tags in a comment": ASCII_MOVES.replace(" 3.", ' {\n[Event "no"]\n[%clk 0:01:00]\n} 3.'),
    "an ellipsis of Windows-1252": ASCII_MOVES.replace("e4 e5", "e4 1\x85 e5").encode("latin-1"),
    "no-break spaces of Latin-1": ASCII_MOVES.replace(" ", "\u00a0").encode("latin-1"),
    "digits before pawns": ASCII_MOVES.replace("1. e4", "1e4"),
}
DRAWS = (
    *("1/2", "½-½", "½", "0.5-0.5", "1/2:1/2", "½–½", "½ - ½"),
    *("½-½".encode("latin-1"), b"\xbd"),
)


@pytest.mark.parametrize("name", TRANSLATED)
def test_characters_with_a_certain_meaning_are_translated(name: str, tmp_path: Path) -> None:
    text = TRANSLATED[name]
    data = text if isinstance(text, bytes) else text.encode()
    (plain,) = read_games(tmp_path, VALID_GAME)
    (game,) = read_games(tmp_path, HEAD.encode() + data + b" 1-0\n")
    assert (game.status, game.plies, game.result) == ("used", 16, 1)
    assert game.moves == plain.moves


@pytest.mark.parametrize("end", [*DRAWS, "1:0", "0–1"])
@pytest.mark.parametrize("after", [b"", b"\n\n"])
def test_results_in_the_movetext_are_read_in_many_spellings(
    end: str | bytes, after: bytes, tmp_path: Path
) -> None:
    data = end if isinstance(end, bytes) else end.encode()
    (game,) = read_games(tmp_path, f'[Event "a"]\n\n{ASCII_MOVES} '.encode() + data + after)
    result = {"1:0": 1, "0–1": -1}.get(str(end), 0)
    assert (game.status, game.plies, game.result) == ("used", 16, result)


def test_bc4_is_ambiguous_if_a_pawn_and_a_bishop_can_move_there(tmp_path: Path) -> None:
    fen = '[FEN "4k3/8/8/8/2p5/1P6/8/4KB2 w - - 0 1"]\n'
    for move, status in (("bc4", "ambiguous move"), ("bxc4", "used"), ("Bxc4", "used")):
        (game,) = read_games(tmp_path, f'{fen}[Result "1-0"]\n\n1. {move} 1-0\n')
        assert game.status == status


FEN = "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1"
FEN_TAGS = (
    f'[FEN "{FEN}"]', f'[FEN "{FEN}" ]', f'[ FEN "{FEN}"]', f'[Fen "{FEN}"]',
    f"[FEN {FEN}]", f'[FEN"{FEN}"]', f"[FEN “{FEN}”]", f"[FEN '{FEN}']",
    f"[FEN &quot;{FEN}&quot;]", f'[FEN \\"{FEN}\\"]', f'[FEN "{FEN}"', f'[FEN: "{FEN}"]',
    f' [FEN "{FEN}"]', f'\t[FEN "{FEN}"]', f'\u00a0[FEN "{FEN}"]', f'\ufeff[FEN "{FEN}"]',
    f'[White "a"] [FEN "{FEN}"]', f'[White "[b] c"] [fen "{FEN}"] [Black "d"]',
    f'[FEN "{FEN}"]\n[FEN "{FEN}"]', f'[White "a"]\n\n[FEN "{FEN}"]',
    f'[FEN "{FEN}"] {{ a comment }}', f'[CurrentPosition "x"]\n[FEN "{FEN}"]',
)  # fmt: skip
UNREADABLE_POSITIONS = (
    '[SetUp "1"]', "[Setup 1]", '[setup "yes"]', f'[Position "{FEN}"]', f'[StartFEN "{FEN}"]',
    '[InitialFen "?"]', f'[FEN "{FEN[:20]}\n{FEN[20:]}"]', f'[FEN\n"{FEN}"]',
    f'[F\u0415N "{FEN}"]', f'[FEN "{FEN}"]\n[FEN "{FEN[1:]}"]', f'% [FEN "{FEN}"]',
    f'; [FEN "{FEN}"]', '[FEN]', '[FEN ""]', f'[FEN "{FEN.replace("/", chr(92) + "/")}"]',
    f'[SetUp "{FEN}"]', f'{{ FEN: {FEN} }}', f'{{ [FEN "{FEN}"] }}', f'FEN "{FEN}"',
    f'[FEN "{FEN}"] x',
)  # fmt: skip


@pytest.mark.parametrize("tag", FEN_TAGS)
def test_a_fen_tag_in_any_spelling_gives_the_position(tag: str, tmp_path: Path) -> None:
    (plain,) = read_games(tmp_path, f'[Result "1-0"]\n[FEN "{FEN}"]\n\n1. e4 e5 2. d4 d5 1-0\n')
    (game,) = read_games(
        tmp_path, f'[Event "a"]\n[Result "1-0"]\n[SetUp "1"]\n{tag}\n\n1. e4 e5 2. d4 d5 1-0\n'
    )
    assert (game.status, game.plies, game.tags["FEN"].decode()) == ("used", 4, FEN)
    assert game.moves == plain.moves


@pytest.mark.parametrize("tag", UNREADABLE_POSITIONS)
def test_a_game_with_an_unreadable_position_is_dropped(tag: str, tmp_path: Path) -> None:
    text = f'[Event "a"]\n[Result "1-0"]\n{tag}\n\n1. e4 e5 2. d4 d5 1-0\n\n'
    first, last = read_games(tmp_path, f"{text}{VALID_GAME}")
    assert first.status in ("bad FEN", "unreadable move")
    assert (last.status, last.plies) == ("used", 16)


def test_a_later_position_in_a_tag_is_not_taken_for_the_start(tmp_path: Path) -> None:
    for tag in (
        f'[CurrentPosition "{FEN}"]',
        f'[FinalFEN "{FEN}"]',
        '[Defense "Sicilian"]',
        '[SetUp "0"]',
    ):
        (game,) = read_games(tmp_path, f'[Event "a"]\n[Result "1-0"]\n{tag}\n\n{ASCII_MOVES} 1-0\n')
        assert (game.status, game.plies) == ("used", 16)


def test_tags_in_any_spelling_are_read(tmp_path: Path) -> None:
    tags = (
        ' [ event "a"] [whiteElo 1510] [BLACKELO \'1490\']\n\t[ Result “0-1” ][White-Elo "9"] '
        "1. e4 e5 0-1\n"
    )
    (game,) = read_games(tmp_path, tags)
    assert (game.status, game.plies, game.result, game.event) == ("used", 2, -1, b"a")
    assert (game.tags["WhiteElo"], game.tags["BlackElo"]) == (b"1510", b"1490")


def test_tags_without_an_end_are_read_in_linear_time(tmp_path: Path) -> None:
    """None of the 10,000 tags on the line ends, and each might be searched up to the line's end."""
    start = process_time()
    *_, last = read_games(tmp_path, '[a "x] ' * 10_000 + f"\n\n{HEAD}{ASCII_MOVES} 1-0\n")
    assert (last.status, last.plies) == ("used", 16)
    assert process_time() - start < 5


RESULTS = {
    "1-0": 1, "0-1": -1, "1/2-1/2": 0, "1–0": 1, "½-½": 0, "½ – ½": 0, "1/2": 0, "½": 0,
    "0.5-0.5": 0, "1:0": 1, " 0 - 1 ": -1, "1-0 forfeit": 1, "1-0FF": 1, "*": 2, "?": 2, "": 2,
    "-": 2, "White wins": 2, "0-0": -2, "0:0": -2, "+/-": -2, "-/+": -2, "+:-": -2, "1-1": -2,
    "1-00": -2,
}  # fmt: skip


@pytest.mark.parametrize("value", RESULTS)
def test_result_tags_are_read_or_refused(value: str) -> None:
    assert parse_result(value) == RESULTS[value]


@pytest.mark.parametrize(
    ("result", "status", "plies"),
    [("0-0", "unfinished", 0), ("1-0", "used", 7), ("*", "unfinished", 7)],
)
def test_0_0_at_the_end_is_not_a_result(
    result: str, status: str, plies: int, tmp_path: Path
) -> None:
    (game,) = read_games(tmp_path, f'[Result "{result}"]\n\n1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 0-0\n')
    assert (game.status, game.plies) == (status, plies)


COMMENTS = {
    # comment after White's first move: White's centipawns, and seconds before White's next move
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


@pytest.mark.parametrize("comment", COMMENTS)
def test_clocks_and_evals_are_read_from_comments(comment: str, tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(f'[Event "x"]\n[TimeControl "180+2"]\n\n1. e4 {{{comment}}} e5 2. d4 d5 1-0\n')
    (chunk,) = read_chunks([Source(str(path))], 1 << 20)
    _, rows = by_kernels.replay_chunk(chunk)
    value, seconds = COMMENTS[comment]
    assert rows.eval.tolist() == [NO_EVAL, NO_EVAL if value is None else -value, NO_EVAL, NO_EVAL]
    first, third = (NO_CLOCK, NO_CLOCK) if seconds is None else (180, seconds)
    assert rows.clock.tolist() == [first, first, third, NO_CLOCK]


TIME_CONTROLS = {
    "600+5": (600, 5), "300": (300, 0), "0+1": (0, 1),
    **dict.fromkeys(
        ("-", "?", "40/9000", "1/259200", "99999+0", "60+300", "", "0", "10|5", "15 min"), (-1, -1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("control", TIME_CONTROLS)
def test_time_controls_are_seconds_or_unknown(control: str) -> None:
    assert read_time_control(control) == TIME_CONTROLS[control]


def test_evals_only_keeps_only_games_with_a_valid_evaluation(tmp_path: Path) -> None:
    comments = {
        "[%eval 0.17]": True, "[%eval\n0.17]": True, "[%eval 0.17/22]": True,
        "[%eval 0.17,22]": True, "[%eval x]": False, "[%evaluation 3]": False, "0.17/22": False,
        "": False,
    }  # fmt: skip
    path = tmp_path / "games.pgn"
    path.write_text(
        "".join(f'[Event "a"]\n\n1. e4 {{{text}}} e5 2. d4 1-0\n\n' for text in comments)
    )
    made = ingest([str(path)], tmp_path / "out", IngestConfig(evals_only=True), workers=1)
    assert [game["dropped"] is None for game in datasets.games(tmp_path / "out")] == list(
        comments.values()
    )
    assert made["games"]["dropped"] == {"filter: no evals": 4}
    assert {row["eval"] for row in datasets.table(tmp_path / "out").to_pylist()} == {-17}


def test_verify_agrees_with_ingest_about_all_spellings(tmp_path: Path) -> None:
    games = [f"{HEAD}{text} 1-0" for text in TRANSLATED.values()]
    games += [f'[Event "a"]\n{tag}\n[Result "½-½"]\n\n1. e4 e5 2. d4 d5 1-0' for tag in FEN_TAGS]
    path = tmp_path / "games.pgn"
    path.write_text("\n\n".join(["1. d4 d5 1/2", *games]), encoding="utf-8")
    ingest([str(path)], tmp_path / "out", IngestConfig(test_share=0, val_share=0), workers=1)
    found = verify_dataset(tmp_path / "out", [str(path)], rows=10**6)
    assert [*found["files"], *found["splits"], *found["rows"]] == []
    assert found["compared"] > 300


def test_games_written_by_other_programs_are_used_or_dropped_as_expected() -> None:
    expected = {
        "01_figurine": ["used"] * 5,
        "02_lowercase_pieces": ["used", *["unreadable move"] * 2, "illegal move", "used"],
        "04_typographic_dashes": ["used"] * 6,
        "06_indented_tags": ["used"] * 4,
        "07_fen_tag_dialects": ["used"] * 9,
        "08_tags_and_moves_on_one_line": ["used"] * 3,
        "12_odd_results": ["unfinished"] * 2
        + ["used", "unreadable move", "unfinished"]
        + ["used"] * 4,
    }
    for name, statuses in expected.items():
        assert [
            game.status for game in by_kernels.games(shared_data(f"cases/{name}.pgn"))
        ] == statuses, name
