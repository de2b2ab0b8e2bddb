# Fianchetto in a container, with its kernels compiled. docs/guides/containers.md says how to run it.
#   docker build -t fianchetto .
#   docker build -t fianchetto:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.12-slim

# Builds of torch for the processor alone; the builds on PyPI contain CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN apt-get update \
    && apt-get install --yes --no-install-recommends stockfish \
    && rm -rf /var/lib/apt/lists/*

# The sources stay: Dagster reads the definitions from the project's folder.
WORKDIR /opt/fianchetto
COPY constraints.txt ./
RUN pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" torch==2.13.0
COPY . .
RUN pip install --no-cache-dir --editable ".[onnx]" -c constraints.txt \
    && useradd --create-home --uid 1000 fianchetto \
    && install --directory --owner fianchetto /work /work/datasets /work/dagster_home \
    && install --owner fianchetto dagster_home/dagster.yaml /work/dagster_home/ \
    && cp --recursive datasets/sample /work/datasets/

USER fianchetto
WORKDIR /work
ENV DAGSTER_HOME=/work/dagster_home FIANCHETTO_DATASETS=/work/datasets
# Machine code of this kind of processor: another kind compiles once, at its first start.
RUN fianchetto warmup
VOLUME ["/work/datasets", "/work/dagster_home"]
ENTRYPOINT ["fianchetto"]
CMD ["--help"]
