"""The packages, and with them the checkpoint and the sample dump, which the repository keeps in
`datasets/`.
"""

from setuptools import find_packages, setup

DATA = {"fianchetto.embedded": "datasets/embedded", "fianchetto.sample": "datasets/sample"}

setup(
    packages=[*find_packages(include=["engine*", "fianchetto*", "model*", "pipeline*"]), *DATA],
    package_dir=DATA,
    package_data={name: ["*"] for name in DATA}
    | {
        "pipeline.evaluation": ["page/*"],
        "model.inference": ["web/*"],
        "pipeline": ["recipes/*.yaml"],
        "pipeline.board": ["static/*"],
    },
)
