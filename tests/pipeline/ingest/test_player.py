"""Keep only the moves of given players, as python-chess finds them by the tags."""

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
def test_only_the_moves_of_the_named_players_become_rows(
    wanted: tuple[str, ...], dump: Path, tmp_path: Path
) -> None:
    text, expected_rows = io.StringIO(dump.read_text()), set()
    for number, game in enumerate(iter(lambda: chess.pgn.read_game(text), None)):
        players = [
            game.headers[side].replace('\\"', '"').replace("\\\\", "\\")
            for side in ("White", "Black")
        ]
        board = game.board()
        for move in game.mainline_moves():
            if players[not board.turn] in wanted:
                expected_rows.add((number, board.ply()))
            board.push(move)
    for name, players in (("some", wanted), ("all", ())):
        config = IngestConfig(test_share=0.0, val_share=0.0, player=players)
        ingest([str(dump)], tmp_path / name, config, workers=1)
    rows, all_rows = (
        {(row["game"], row["ply"]): row for row in datasets.table(tmp_path / name).to_pylist()}
        for name in ("some", "all")
    )
    assert rows == {key: row for key, row in all_rows.items() if key in expected_rows}
    manifest, games = datasets.manifest(tmp_path / "some"), {game for game, _ in expected_rows}
    assert manifest["positions"]["total"] == len(expected_rows) > 50
    dropped = {"filter: player": 60 - len(games)}
    assert manifest["games"] == {"read": 60, "used": len(games), "dropped": dropped}
    others = sum(1 for game, _ in all_rows if game in games) - len(expected_rows)
    assert manifest["positions_dropped"] == {"filter: another player's move": others}


def test_a_misspelled_name_is_refused_with_the_most_frequent_names(
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


def test_a_name_in_latin_1_is_found(dump: Path, tmp_path: Path) -> None:
    """ChessBase writes Latin-1, as the PGN standard requires."""
    latin_1 = tmp_path / "latin_1.pgn"
    latin_1.write_bytes(dump.read_text().encode("latin-1"))
    used = [
        ingest([str(path)], tmp_path / path.stem, IngestConfig(player=("Zoë",)), workers=1)[
            "games"
        ]["used"]
        for path in (dump, latin_1)
    ]
    assert used[0] == used[1] > 0
