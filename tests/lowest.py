"""Print the lowest versions that pyproject.toml allows, as pip constraints: `python -m
tests.lowest`."""

import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import REPOSITORY

EXTRAS = ("dev",)
EXCEPT = {"torch": "2.13.0"}
"""Versions that replace the lowest ones: other builds of torch have gigabytes."""


def lowest(project: dict[str, Any]) -> Iterator[str]:
    """Yield a constraint for each requirement with a lower bound."""
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        bounds = [
            Version(bound.version)
            for bound in requirement.specifier
            if bound.operator in (">=", "==", "~=")
        ]
        if name in EXCEPT:
            yield f"{name}=={EXCEPT[name]}"
        elif bounds:
            yield f"{name}=={max(bounds)}"


if __name__ == "__main__":
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        sys.stdout.writelines(f"{line}\n" for line in lowest(tomllib.load(file)["project"]))
