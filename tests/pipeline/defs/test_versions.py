"""Code versions: they change when the code of their rooms does, and with nothing else."""

import re
from pathlib import Path

import pytest

from pipeline.defs.versions import CODE_VERSION, code_of


def test_only_code_counts(tmp_path: Path) -> None:
    (tmp_path / "room" / "inner").mkdir(parents=True)
    (tmp_path / "other").mkdir()

    def version(text: str, beside: str = "") -> str:
        code_of.__globals__["_hash"].cache_clear()
        (tmp_path / "room" / "inner" / "a.py").write_text(text)
        (tmp_path / "other" / "b.py").write_text(beside)
        return code_of("room", root=tmp_path)

    before = version('"""Words."""\nRATE = 1\n')
    assert re.fullmatch(rf"{re.escape(CODE_VERSION)}, code [0-9a-f]{{16}}", before)
    assert version('"""Other words."""\n\n# a comment\nRATE = 1  # and one more\n', "x = 1\n") == before
    assert version("RATE = 2\n") != before
    one = code_of("room/inner/a.py", root=tmp_path)
    (tmp_path / "room" / "new.py").write_text("x = 1\n")
    assert code_of("room/inner/a.py", root=tmp_path) == one
    assert code_of("room", root=tmp_path) != version("RATE = 3\n")


def test_a_room_that_is_gone_is_no_code_version(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        code_of("nowhere", root=tmp_path)
