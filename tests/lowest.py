"""`python -m tests.lowest`: print the lowest versions that pyproject.toml allows, for pip -c."""

import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import REPOSITORY

OVERRIDES = {"torch": "2.13.0"}
"""Versions used instead of the lowest ones: other builds of torch have gigabytes."""


def list_constraints(project: dict[str, Any]) -> Iterator[str]:
    """Yield a constraint for each requirement with a lower bound."""
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        bounds = [
            Version(bound.version)
            for bound in requirement.specifier
            if bound.operator in (">=", "==", "~=")
        ]
        if name in OVERRIDES:
            yield f"{name}=={OVERRIDES[name]}"
        elif bounds:
            yield f"{name}=={max(bounds)}"


if __name__ == "__main__":
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        sys.stdout.writelines(
            f"{line}\n" for line in list_constraints(tomllib.load(file)["project"])
        )
