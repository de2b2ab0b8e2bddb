"""Texts that other readers misread: each game is read as written, or dropped under a named
reason."""

from pathlib import Path
from time import process_time

import pytest

from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.ingest.tag_values import parse_result
from pipeline.validation.verify import verify_dataset
from tests.conftest import shared_data
from tests.pipeline import by_kernels, by_python_chess, datasets
from tests.pipeline.by_kernels import Game

PLAIN = "1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 4. O-O Nf6 5. d4 exd4 6. e5 d5 7. exd6 O-O 8. dxc7 Qxc7"
HEAD = '[Event "a"]\n[Result "1-0"]\n\n'


def read(tmp_path: Path, text: str | bytes) -> list[Game]:
    """Read the games of a text."""
    path = tmp_path / "games.pgn"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(by_kernels.games(path))


TRANSLATED = {
    "figurines": PLAIN.replace("N", "♘").replace("B", "♝").replace("Q", "♛"),
    "figurines as glyphs": PLAIN.replace("N", "♘\ufe0e").replace("e5 2", "♟\ufe0ee5 2"),
    "pawns": PLAIN.replace("e4", "♙e4").replace("exd4", "♟exd4"),
    "no-break spaces": PLAIN.replace(" ", "\u00a0"),
    "other spaces": PLAIN.replace(". ", ".\u2009").replace(" ", "\u3000"),
    "zero width between tokens": PLAIN.replace(" ", " \u200b").replace("Nf3 ", "Nf3\u200d "),
    "dashes": PLAIN.replace("O-O", "O–O").replace("e4 e5", "e2−e4 e7‑e5").replace("Nf3", "Ng1—f3"),
    "an ellipsis": PLAIN.replace("e4 e5", "e4 1… e5"),
    "a sign of capture": PLAIN.replace("x", "×"),
    "signs of evaluation": PLAIN.replace("Nf3", "Nf3 ⩲")
    .replace("Bc4", "Bc4±")
    .replace("exd4", "exd4 ∞"),
    "marks": PLAIN.replace("Nf3", "Nf3 --+")
    .replace("Bc4", "Bc4+--")
    .replace("e5 6", "e5 -/+ 6")
    .replace("O-O", "O-O ="),
    "words": PLAIN.replace("exd6", "exd6e.p.").replace("dxc7", "dxc7 ep").replace("Qxc7", "Qxc7ch"),
    "blank lines": PLAIN.replace(" 3.", "\n\n3.").replace(" 6.", "\n \n\n6."),
    "a blank line behind a comment": "{ Annotated }\n\n" + PLAIN,
    "a comment over blank lines": PLAIN.replace(
        " 3.", ' { one\n\ntwo\n\n[Event "no"]\n[FEN "x"]\n\n1. d4 } 3.'
    ),
    "tags in a comment": PLAIN.replace(" 3.", ' {\n[Event "no"]\n[%clk 0:01:00]\n} 3.'),
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_what_is_certain_is_translated(name: str, tmp_path: Path) -> None:
    (plain,) = read(tmp_path, f"{HEAD}{PLAIN} 1-0\n")
    (game,) = read(tmp_path, f"{HEAD}{TRANSLATED[name]} 1-0\n")
    assert (game.status, game.plies, game.result) == ("used", 16, 1)
    assert game.moves == plain.moves


def test_latin_1_is_translated(tmp_path: Path) -> None:
    text = f'[Event "a"]\n\n{PLAIN} ½-½\n'.replace(" ", "\u00a0").encode("latin-1")
    (game,) = read(tmp_path, text.replace(b"[Event\xa0", b"[Event "))
    assert (game.status, game.plies, game.result) == ("used", 16, 0)


def test_an_ellipsis_of_windows_1252_is_read(tmp_path: Path) -> None:
    (game,) = read(tmp_path, HEAD.encode() + b"1.e4 1\x85e5 2.Nf3 2\x85 Nc6 1-0")
    assert (game.status, game.plies) == ("used", 4)


@pytest.mark.parametrize("end", [b"\xbd", "½".encode()])
def test_a_half_is_read_at_the_end_of_a_file(end: bytes, tmp_path: Path) -> None:
    (game,) = read(tmp_path, f'[Event "a"]\n\n{PLAIN} '.encode() + end)
    assert (game.status, game.plies, game.result) == ("used", 16, 0)


UNREADABLE = (
    "1. nf3 nf6", "1. e4 nf6", "1. Sf3 Sf6", "1. e4 e5 2. Dh5", "1. Pf3", "1. Кf3", "1. е4",
    "1. N\u200bf3", "1. Nf\u200b3", "1. N f3", "1. e4 e5 2. N f3", "1. e 4", "1. e4 e5 2. B c4",
    "1. e4\u200bd5", "1. e4 \u0301e5", "1. e4 e5 2. ♙Nf3", "1. e4 o-o", "1. e4 e5 - 2. Nf3",
    "1. e4 e5, 2. Nf3", "1. e4 e5 ) 2. Nf3", "1. e4 e5 } 2. Nf3", "(1. d4) 1. e4 e5",
    "1. e4 x 1... e5", "1. xe4", "1. e4 $ e5", "1. e4 % e5", "1. e4 [%clk 0:01:00] e5",
    "1. e4 e5 better 2. Nf3", "1. e4\x00 e5", "1. e4 e5 2. Nf3 Nc6 4. Bc4", "12. e4 e5",
    "1. e4 e5 2... Nf3", "1. e4 e5 1/2-1/2 2. Nf3", "1. e4 e5 1-0 1. d4 d5", "1. e4 e5 2. Nf32 Nc6",
    '1. e4 e5\n[Site "?"]\n2. Nf3',
)  # fmt: skip


@pytest.mark.parametrize("movetext", UNREADABLE)
def test_what_is_not_certain_drops_the_game(movetext: str, tmp_path: Path) -> None:
    control = f"{HEAD}{PLAIN} 1-0\n\n"
    games = read(tmp_path, f"{control}{HEAD}{movetext} 1-0\n\n{control}")
    assert [game.status for game in games] == ["used", "unreadable move", "used"]


def test_a_pawn_and_a_bishop_that_may_take_are_ambiguous(tmp_path: Path) -> None:
    fen = '[FEN "4k3/8/8/8/2p5/1P6/8/4KB2 w - - 0 1"]\n'
    for move, status in (("bc4", "ambiguous move"), ("bxc4", "used"), ("Bxc4", "used")):
        (game,) = read(tmp_path, f'{fen}[Result "1-0"]\n\n1. {move} 1-0\n')
        assert game.status == status


@pytest.mark.parametrize(
    "text", ["1. e4 { no end", "1. e4 (1. d4 d5", "1. e4 { good e5 2. Nf3 { ok } Nc6 1-0"]
)
def test_what_is_never_closed_drops_its_game_alone(text: str, tmp_path: Path) -> None:
    control = f"{HEAD}{PLAIN} {{ [%clk 0:01:00] }} 1-0\n\n"
    games = read(tmp_path, f"{control}{HEAD}{text}\n\n{control}{control}")
    assert [game.status for game in games] == ["used", "unclosed comment", "used", "used"]


BOARD = "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1"
POSITION = (
    f'[FEN "{BOARD}"]', f'[FEN "{BOARD}" ]', f'[ FEN "{BOARD}"]', f'[Fen "{BOARD}"]',
    f"[FEN {BOARD}]", f'[FEN"{BOARD}"]', f"[FEN “{BOARD}”]", f"[FEN '{BOARD}']",
    f"[FEN &quot;{BOARD}&quot;]", f'[FEN \\"{BOARD}\\"]', f'[FEN "{BOARD}"', f'[FEN: "{BOARD}"]',
    f' [FEN "{BOARD}"]', f'\t[FEN "{BOARD}"]', f'\u00a0[FEN "{BOARD}"]', f'\ufeff[FEN "{BOARD}"]',
    f'[White "a"] [FEN "{BOARD}"]', f'[White "[b] c"] [fen "{BOARD}"] [Black "d"]',
    f'[FEN "{BOARD}"]\n[FEN "{BOARD}"]', f'[White "a"]\n\n[FEN "{BOARD}"]',
    f'[FEN "{BOARD}"] {{ a comment }}', f'[CurrentPosition "x"]\n[FEN "{BOARD}"]',
)  # fmt: skip
NO_POSITION = (
    '[SetUp "1"]', "[Setup 1]", '[setup "yes"]', f'[Position "{BOARD}"]', f'[StartFEN "{BOARD}"]',
    '[InitialFen "?"]', f'[FEN "{BOARD[:20]}\n{BOARD[20:]}"]', f'[FEN\n"{BOARD}"]',
    f'[F\u0415N "{BOARD}"]', f'[FEN "{BOARD}"]\n[FEN "{BOARD[1:]}"]', f'% [FEN "{BOARD}"]',
    f'; [FEN "{BOARD}"]', '[FEN]', '[FEN ""]', f'[FEN "{BOARD.replace("/", chr(92) + "/")}"]',
    f'[SetUp "{BOARD}"]', f'{{ FEN: {BOARD} }}', f'{{ [FEN "{BOARD}"] }}', f'FEN "{BOARD}"',
    f'[FEN "{BOARD}"] x',
)  # fmt: skip


@pytest.mark.parametrize("tag", POSITION)
def test_a_fen_in_any_spelling_gives_its_position(tag: str, tmp_path: Path) -> None:
    (plain,) = read(tmp_path, f'[Result "1-0"]\n[FEN "{BOARD}"]\n\n1. e4 e5 2. d4 d5 1-0\n')
    (game,) = read(
        tmp_path, f'[Event "a"]\n[Result "1-0"]\n[SetUp "1"]\n{tag}\n\n1. e4 e5 2. d4 d5 1-0\n'
    )
    assert (game.status, game.plies, game.tags["FEN"].decode()) == ("used", 4, BOARD)
    assert game.moves == plain.moves


@pytest.mark.parametrize("tag", NO_POSITION)
def test_a_position_that_is_not_read_is_never_the_usual_one(tag: str, tmp_path: Path) -> None:
    text = (
        f'[Event "a"]\n[Result "1-0"]\n{tag}\n\n1. e4 e5 2. d4 d5 1-0\n\n[Event '
        f'"b"]\n\n{PLAIN} '
        f"1-0\n"
    )
    first, *between, last = read(tmp_path, text)
    assert first.status in ("bad FEN", "unreadable move")
    assert not between
    assert (last.status, last.plies) == ("used", 16)


def test_other_tags_hold_no_start(tmp_path: Path) -> None:
    for tag in (
        f'[CurrentPosition "{BOARD}"]',
        f'[FinalFEN "{BOARD}"]',
        '[Defense "Sicilian"]',
        '[SetUp "0"]',
    ):
        (game,) = read(tmp_path, f'[Event "a"]\n[Result "1-0"]\n{tag}\n\n{PLAIN} 1-0\n')
        assert (game.status, game.plies) == ("used", 16)


def test_tags_in_any_spelling_are_read(tmp_path: Path) -> None:
    tags = (
        ' [ event "a"] [whiteElo 1510] [BLACKELO \'1490\']\n\t[ Result “0-1” ][White-Elo "9"] '
        "1. e4 e5 0-1\n"
    )
    (game,) = read(tmp_path, tags)
    assert (game.status, game.plies, game.result, game.event) == ("used", 2, -1, b"a")
    assert (game.tags["WhiteElo"], game.tags["BlackElo"]) == (b"1510", b"1490")


SPLIT = {
    "tags end a game without a result": (f"{HEAD}1. e4\n\n{HEAD}1. d4 1-0\n", [1, 1]),
    "a result and a blank line": ("1. e4 e5 1-0\n\n1. d4 1-0\n", [2, 1]),
    "no tags and no result": ("prose\n\n1. e4 e5 1-0\n\nmore prose\n\n1. d4 1-0\n", [0, 2, 0, 1]),
    "any tag behind a result": ('1. e4 1-0\n[White "a"]\n\n1. d4 d5 1-0\n', [1, 2]),
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


@pytest.mark.parametrize("name", SPLIT)
def test_games_begin_where_they_should(name: str, tmp_path: Path) -> None:
    text, plies = SPLIT[name]
    assert [game.plies for game in read(tmp_path, text)] == plies


def test_tags_without_an_end_take_linear_time(tmp_path: Path) -> None:
    """A line of 700 kB whose values are never closed: each would be searched up to its end."""
    begun = process_time()
    *_, last = read(tmp_path, '[a "x] ' * 100_000 + f"\n\n{HEAD}{PLAIN} 1-0\n")
    assert (last.status, last.plies) == ("used", 16)
    assert process_time() - begun < 15


RESULTS = {
    "1-0": 1, "0-1": -1, "1/2-1/2": 0, "1–0": 1, "½-½": 0, "½ – ½": 0, "1/2": 0, "½": 0,
    "0.5-0.5": 0, "1:0": 1, " 0 - 1 ": -1, "1-0 forfeit": 1, "1-0FF": 1, "*": 2, "?": 2, "": 2,
    "-": 2, "White wins": 2, "0-0": -2, "0:0": -2, "+/-": -2, "-/+": -2, "+:-": -2, "1-1": -2,
    "1-00": -2,
}  # fmt: skip


@pytest.mark.parametrize("value", RESULTS)
def test_results_are_read_or_refused(value: str) -> None:
    assert parse_result(value) == RESULTS[value]


@pytest.mark.parametrize(
    ("result", "status", "plies"),
    [("0-0", "unfinished", 0), ("1-0", "used", 7), ("*", "unfinished", 7)],
)
def test_a_final_double_forfeit_is_no_castling(
    result: str, status: str, plies: int, tmp_path: Path
) -> None:
    (game,) = read(tmp_path, f'[Result "{result}"]\n\n1. e4 e5 2. Nf3 Nc6 3. Bc4 Bc5 0-0\n')
    assert (game.status, game.plies) == (status, plies)


@pytest.mark.parametrize("end", ["1/2", "½-½", "½", "0.5-0.5", "1/2:1/2", "½–½", "1:0", "0–1"])
def test_a_result_in_the_movetext_has_many_spellings(end: str, tmp_path: Path) -> None:
    (game,) = read(tmp_path, f'[Event "a"]\n\n{PLAIN} {end}\n\n')
    assert (game.status, game.plies, game.result) == ("used", 16, {"1:0": 1, "0–1": -1}.get(end, 0))


def test_evals_only_keeps_the_games_whose_rows_have_evals(tmp_path: Path) -> None:
    notes = {
        "[%eval 0.17]": True, "[%eval\n0.17]": True, "[%eval 0.17/22]": True,
        "[%eval 0.17,22]": True, "[%eval x]": False, "[%evaluation 3]": False, "0.17/22": False,
        "": False,
    }  # fmt: skip
    path = tmp_path / "games.pgn"
    path.write_text("".join(f'[Event "a"]\n\n1. e4 {{{note}}} e5 2. d4 1-0\n\n' for note in notes))
    made = ingest([str(path)], tmp_path / "out", IngestConfig(evals_only=True), workers=1)
    assert [game["dropped"] is None for game in datasets.games(tmp_path / "out")] == list(
        notes.values()
    )
    assert made["games"]["dropped"] == {"filter: no evals": 4}
    assert {row["eval"] for row in datasets.table(tmp_path / "out").to_pylist()} == {-17}


def test_verify_reads_what_ingest_reads(tmp_path: Path) -> None:
    games = [f"{HEAD}{text} 1-0" for text in TRANSLATED.values()]
    games += [f"{HEAD}1e4 e5 2Nf3 Nc6 1-0"]  # no rank
    games += [f'[Event "a"]\n{tag}\n[Result "½-½"]\n\n1. e4 e5 2. d4 d5 1-0' for tag in POSITION]
    path = tmp_path / "games.pgn"
    path.write_text("\n\n".join(["1. d4 d5 1/2", *games]), encoding="utf-8")
    ingest([str(path)], tmp_path / "out", IngestConfig(test_share=0, val_share=0), workers=1)
    found = verify_dataset(tmp_path / "out", [str(path)], rows=10**6)
    assert [*found["files"], *found["splits"], *found["rows"]] == []
    assert found["compared"] > 300


FOREIGN = (
    *"♔♕♖♗♘♙♚♛♜♝♞♟", *"–—−‑‐‒―", *"½¼⅓", *"±∓⩲∞□→", *"…×†‚“”’«»", *"КНФСеасВОо", *"ÄßéñŁδЖ中",
    "\u00a0", "\u2009", "\u3000", "\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e",
    "\u0301", "\ufe0f", "\x00", "\x7f",
)  # fmt: skip
MEANINGS = str.maketrans(
    dict(zip("♔♕♖♗♘♚♛♜♝♞–—−‑‐‒―×", "KQRBNKQRBN-------x", strict=True))
    | dict.fromkeys("♙♟\u200b\u200d\u2060\ufeff\u00ad", "")
    | dict.fromkeys("\u00a0\u2009\u3000", " ")
)
ATTACKED = (
    "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Bxc6 dxc6 5. O-O f6 6. d4 exd4 7. Nxd4 c5 8. Nb3 "
    "Qxd1 "
    "9. Rxd1 {x} Bg4 1-0"
)


@pytest.mark.parametrize("char", FOREIGN)
def test_a_foreign_character_anywhere_changes_no_move(char: str, tmp_path: Path) -> None:
    (plain,) = read(tmp_path, f"{HEAD}{ATTACKED}\n")
    places = range(len(ATTACKED) + 1)
    texts = [
        f"{ATTACKED[:at]}{char}{ATTACKED[at + replaced :]}" for at in places for replaced in (0, 1)
    ]
    games = read(tmp_path, "".join(f"{HEAD}{text}\n\n" for text in texts))
    assert len(games) == len(texts)
    for game, text in zip(games, texts, strict=True):
        # then it must be what the character means
        if game.status == "used" and game.moves != plain.moves:
            assert ord(char) in MEANINGS, text
            (meant,) = by_python_chess.read(f"{HEAD}{text.translate(MEANINGS)}\n".encode())
            assert (meant.verdict, len(meant.moves)) == ("used", game.plies), text


def test_the_cases_of_other_programs_are_used_or_dropped_by_name() -> None:
    expected = {
        "01_figurine": ["used"] * 5,
        "02_lowercase_pieces": [
            "used",
            "unreadable move",
            "unreadable move",
            "illegal move",
            "used",
        ],
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
