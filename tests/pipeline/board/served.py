"""`fianchetto play` in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import forked
from tests.conftest import REPOSITORY


@contextmanager
def serving(
    port: int = 0, cwd: Path = REPOSITORY, **environment: str
) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Yield the process and the address of its page; port 0 is a free one."""
    words = [sys.executable, "-m", "pipeline", "play", "--port", str(port)]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with forked.Popen(words, cwd=cwd, env=variables, text=True, **pipes) as process:
        try:
            address = None
            while address is None:
                line = process.stdout.readline()
                assert line, "the server ended"
                address = re.search(r"http://[0-9.:]+", line)
            yield process, address[0]
        finally:
            process.kill()
