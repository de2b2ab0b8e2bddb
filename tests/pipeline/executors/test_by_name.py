"""An engine is one setting, and Ray is not touched unless it is asked for."""

import subprocess
import sys

import pytest

from pipeline.errors import ConfigError
from pipeline.executors import ray as ray_engine
from pipeline.executors.by_name import engine_of
from pipeline.executors.local import Failure, LocalEngine
from tests.conftest import REPOSITORY
from tests.pipeline.executors import jobs


def test_local_is_processes_of_this_machine() -> None:
    engine = engine_of("local", 3)
    assert isinstance(engine, LocalEngine)
    assert engine.workers == 3


@pytest.mark.parametrize("name", ["", "Local", "dask", "ray:", "ray://", "rays", "tcp://1.2.3.4:5"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="an engine is local, ray"):
        engine_of(name)


@pytest.mark.parametrize("name", ["ray", "ray:10.0.0.1:6379", "ray://head:10001"])
def test_where_ray_is_absent_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # what Python itself takes for: it cannot be imported
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"fianchetto\[ray\]"):
        engine_of(name)


def test_nothing_of_ray_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, pipeline.cli.main, pipeline.ingest.job, pipeline.executors.by_name as e; "
        "e.engine_of('local')\n"
    )
    code += "sys.exit(any(name.partition('.')[0] == 'ray' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_a_node_with_other_kernels_is_refused() -> None:
    assert ray_engine._work(jobs.square, 7, ray_engine._version()) == ("ok", 49)
    status, failure = ray_engine._work(jobs.square, 7, "0123456789abcdef")
    assert status == "error"
    assert isinstance(failure, Failure)
    assert "has another Fianchetto" in failure.message
