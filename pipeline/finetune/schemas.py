"""Schema of a fine-tuning's state.json."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pipeline.dataset.files.schemas import Count, Number, Schema, Text


class Verdict(Schema):
    """What became of a generation's candidate."""

    promoted: bool
    undone: bool
    reason: Text


class Generation(Schema):
    """A generation; the results of its stages are dicts of their own, by name."""

    number: Count
    stages: dict[str, dict[str, Any]]
    seconds: dict[str, Number]
    ended: dict[str, Text]
    verdict: Verdict = Verdict(promoted=False, undone=False, reason="")


class FinetuneRun(Schema):
    """One start of a fine-tuning."""

    began: Text
    device: Text
    host: Text


class FinetuneState(Schema):
    """state.json."""

    format_version: int
    seconds: Annotated[float, Field(ge=0.0, lt=1e12)]
    runs: list[FinetuneRun]
    generations: list[Generation]

    @model_validator(mode="after")
    def _follow(self) -> Self:
        if [one.number for one in self.generations] != list(range(len(self.generations))):
            raise ValueError("its generations are not numbered one after the other")
        return self
