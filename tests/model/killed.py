"""Simulate a kill: from a numbered file operation on, none succeeds."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for SIGKILL: no handler may catch it."""


def kill_before(patch: pytest.MonkeyPatch, operation: int) -> Callable[[], bool]:
    """Make all renames, replacements and deletions from this one on (from 0) raise Killed.

    Return whether one did.
    """
    numbers, last = itertools.count(), [-1]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any, **more: Any) -> Any:
            last[0] = next(numbers)
            if last[0] >= operation:
                raise Killed
            return real(*arguments, **more)

        return work

    for name in ("rename", "replace", "unlink"):
        patch.setattr(os, name, counted(getattr(os, name)))
    return lambda: last[0] >= operation
