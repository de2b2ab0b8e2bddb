"""Moves of one player, compared with python-chess's reading of the tags."""

import io
import random
from pathlib import Path

import chess.pgn
import pytest

from pipeline.errors import DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

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


@pytest.mark.parametrize("wanted", [('Bob "The Rook" O\\',), ("Carlsen, Magnus", "Zoë")])
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
    for name, players in (("some", wanted), ("all", ())):
        config = IngestConfig(test_share=0.0, val_share=0.0, player=players)
        ingest([str(dump)], tmp_path / name, config, workers=1)
    rows, whole = (
        {(row["game"], row["ply"]): row for row in datasets.table(tmp_path / name).to_pylist()}
        for name in ("some", "all")
    )
    places = {(game, ply) for game, ply, _ in expected}
    assert rows == {place: row for place, row in whole.items() if place in places}
    manifest, games = datasets.manifest(tmp_path / "some"), {game for game, _ in places}
    assert manifest["positions"]["total"] == len(expected) > 50
    dropped = {"filter: player": 60 - len(games)}
    assert manifest["games"] == {"read": 60, "used": len(games), "dropped": dropped}
    others = sum(1 for game, _ in whole if game in games) - len(expected)
    assert manifest["positions_dropped"] == {"filter: another player's move": others}


def test_a_misspelled_name_gets_the_most_frequent_ones_and_leaves_nothing_behind(
    dump: Path, tmp_path: Path
) -> None:
    out, text = tmp_path / "out", dump.read_text()
    counts = {name: text.count(f' "{escape(name)}"]') for name in NAMES}
    most = sorted(counts, key=lambda name: -counts[name])
    with pytest.raises(DatasetError, match="none of the 60 games has a move by 'ANN'") as refusal:
        ingest([str(dump)], out, IngestConfig(player=("ANN",)), workers=1)
    assert f"{most[0]!r} ({counts[most[0]]})" in str(refusal.value)
    assert sum(repr(name) in str(refusal.value) for name in NAMES) == 5
    assert "\x1b" not in str(refusal.value)
    made = ingest([str(dump)], out, IngestConfig(player=("Ann",)), workers=1)
    assert made["games"]["used"] == counts["Ann"]


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
