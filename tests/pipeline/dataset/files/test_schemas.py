"""Invalid JSON files of unfinished matches, fine-tunes and ingests are refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from pipeline.dataset.files.manifest import read_chunk_note
from pipeline.finetune.state import STATE_FILE, read_state
from pipeline.matches.match import GAMES_FILE, read_games
from tests.pipeline.hostile import INVALID_JSON

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
GAME: dict[str, Any] = {
    **{"game": 0, "fen": START, "book": ["e2e4"], "moves": ["e7e5"], "scores": ["0.1"]},
    **{"clocks": None, "result": "1-0", "ending": "adjudication", "forfeit": None, "detail": ""},
}
GAMES: list[dict[str, Any]] = [
    {"game": -1},
    {"game": True},
    {"fen": "nothing"},
    {"book": ["e2e5"]},
    {"moves": ["xx"]},
    {"scores": []},
    {"clocks": [1.0, 2.0]},
    {"result": "*"},
    {"more": 1},
]
FIRST: dict[str, Any] = {"number": 0, "stages": {"eval": {}}, "seconds": {"eval": 1.0}}
STATE_OF: dict[str, Any] = {"format_version": 2, "seconds": 1.5, "generations": [FIRST]}
STATES: list[dict[str, Any]] = [
    {"format_version": 1},
    {"seconds": -1.0},
    {"generations": [7]},
    {"generations": [FIRST | {"number": 1}]},
    {"generations": [FIRST | {"stages": {"eval": 7}}]},
    {"generations": [FIRST | {"verdict": {"promoted": 1}}]},
]
FILE: dict[str, Any] = {"name": "x", "split": None, "rows": 1, "bytes": 1, "sha256": "0" * 64}
NOTE: dict[str, Any] = {
    **{"text_sha256": "0" * 64, "games": 1, "status": {}, "rows": 1, "rows_dropped": {}},
    **{"label_collisions": 0, "files": [FILE]},
}
NOTES: list[dict[str, Any]] = [{"rows": -1}, {"files": [FILE | {"name": "../x"}]}, {"status": []}]
NOTE_PATH = ".building/parts/00000.json"


READERS: dict[str, Callable[[Path], Any]] = {
    GAMES_FILE: read_games,
    STATE_FILE: read_state,
    NOTE_PATH: lambda folder: read_chunk_note(folder / NOTE_PATH),
}


@pytest.mark.parametrize(
    ("name", "valid", "changes"),
    [(GAMES_FILE, GAME, GAMES), (STATE_FILE, STATE_OF, STATES), (NOTE_PATH, NOTE, NOTES)],
)
def test_an_invalid_file_is_refused_in_one_line(
    name: str, valid: dict[str, Any], changes: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(valid) + "\n")
    assert READERS[name](tmp_path)
    invalid = [json.dumps(valid | change).encode() for change in changes]
    for data in (*invalid, INVALID_JSON["a picture"].replace(b"\n", b" "), INVALID_JSON["a list"]):
        path.write_bytes(data + b"\n")
        with pytest.raises(UserError, match=path.name) as refusal:
            READERS[name](tmp_path)
        assert "\n" not in str(refusal.value)
