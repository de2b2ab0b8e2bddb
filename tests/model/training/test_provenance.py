"""Where a checkpoint comes from: its commit, and whether the code was that commit's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from model.training.save import commit

commit_of = commit.__wrapped__
"""Without the cache, since the tree changes here."""


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_a_changed_tree_is_called_dirty(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit_of(tmp_path) is None
    git("init")
    assert commit_of(tmp_path) is None
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "-m", "one")
    head = git("rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("")
    assert commit_of(tmp_path) == head
    (tmp_path / "code.py").write_text("22")
    assert commit_of(tmp_path) == f"{head}-dirty"
    git("add", "code.py")
    assert commit_of(tmp_path) == f"{head}-dirty"
