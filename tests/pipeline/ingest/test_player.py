"""Moves of one player: python-chess's reading of the tags says whose they are; names are text,
however hostile."""

import io
import random
from pathlib import Path

import chess.pgn
import pytest

from pipeline.errors import DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

CONFIG = IngestConfig(test_share=0.0, val_share=0.0)
NAMES = ("Ann", "ann", 'Bob "The Rook" O\\', "Carlsen, Magnus", "<b>\x1b[1m", "Zoë")


def escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, texts = tmp_path_factory.mktemp("player") / "games.pgn", []
    for seed in range(60):
        white, black = random.Random(seed).sample(NAMES, 2)
        event, _, rest = datasets.random_game(seed, 10 + seed % 7).partition("\n")
        texts.append(f'{event}\n[White "{escape(white)}"]\n[Black "{escape(black)}"]\n{rest}')
    path.write_text("".join(texts))
    return path


@pytest.mark.parametrize(
    "wanted", [("Ann",), ('Bob "The Rook" O\\',), ("Carlsen, Magnus", "Zoë"), ("<b>\x1b[1m",)]
)
def test_rows_are_the_moves_of_the_named_players(
    wanted: tuple[str, ...], dump: Path, tmp_path: Path
) -> None:
    text, expected = io.StringIO(dump.read_text()), set()
    for number, game in enumerate(iter(lambda: chess.pgn.read_game(text), None)):
        players = [
            game.headers[side].replace('\\"', '"').replace("\\\\", "\\")
            for side in ("White", "Black")
        ]
        board = game.board()
        for move in game.mainline_moves():
            if players[not board.turn] in wanted:
                expected.add((number, board.ply(), move.uci()[:4]))
            board.push(move)
    ingest(
        [str(dump)],
        tmp_path / "some",
        IngestConfig(test_share=0.0, val_share=0.0, player=wanted),
        workers=1,
    )
    ingest([str(dump)], tmp_path / "all", CONFIG, workers=1)
    whole = {(row["game"], row["ply"]): row for row in datasets.table(tmp_path / "all").to_pylist()}
    rows = {(row["game"], row["ply"]): row for row in datasets.table(tmp_path / "some").to_pylist()}
    assert rows == {
        place: row
        for place, row in whole.items()
        if place in {(game, ply) for game, ply, _ in expected}
    }
    manifest = datasets.manifest(tmp_path / "some")
    assert manifest["positions"]["total"] == len(expected) > 50
    games = {game for game, _, _ in expected}
    assert manifest["games"] == {
        "read": 60,
        "used": len(games),
        "dropped": {"filter: player": 60 - len(games)},
    }
    their_games = {game: ply for game, ply in whole if game in games}
    others = sum(1 for game, _ in whole if game in their_games) - len(expected)
    assert manifest["positions_dropped"] == {"filter: another player's move": others}


def test_a_misspelled_name_gets_the_most_frequent_ones_and_leaves_nothing_behind(
    dump: Path, tmp_path: Path
) -> None:
    out, counts = (
        tmp_path / "out",
        {name: dump.read_text().count(f' "{escape(name)}"]') for name in NAMES},
    )
    most = sorted(counts, key=lambda name: -counts[name])
    with pytest.raises(DatasetError, match="no move of 'ANN' is in 60 games") as refusal:
        ingest([str(dump)], out, IngestConfig(player=("ANN",)), workers=1)
    assert f"{most[0]!r} ({counts[most[0]]})" in str(refusal.value)
    assert sum(repr(name) in str(refusal.value) for name in NAMES) == 5
    assert "\x1b" not in str(refusal.value)
    assert (
        ingest([str(dump)], out, IngestConfig(player=("Ann",)), workers=1)["games"]["used"]
        == counts["Ann"]
    )


def test_a_player_whose_games_are_all_left_out_is_told_why_and_not_that_there_are_none(
    dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        DatasetError, match=r"no positions in games\.pgn: 60 games read \(filter: "
    ) as refusal:
        ingest(
            [str(dump)], tmp_path / "out", IngestConfig(player=("Ann",), min_elo=4000), workers=1
        )
    assert "filter: elo: " in str(refusal.value)
    assert "no move of" not in str(refusal.value)


def test_a_name_in_latin_1_is_found_as_it_is_read(dump: Path, tmp_path: Path) -> None:
    """ChessBase writes Latin-1, as the PGN standard has it."""
    old = tmp_path / "old.pgn"
    old.write_bytes(dump.read_text().encode("latin-1"))
    used = [
        ingest([str(path)], tmp_path / path.stem, IngestConfig(player=("Zoë",)), workers=1)[
            "games"
        ]["used"]
        for path in (dump, old)
    ]
    assert used[0] == used[1] > 0
