# Fianchetto in a container, with its kernels compiled. docs/guides/containers.md says how to run it.
FROM python:3.12-slim

# The index of torch's builds; by default they contain CUDA. pytorch.org names the index of the
# smaller builds for the processor alone.
ARG TORCH_INDEX=

RUN apt-get update \
    && apt-get install --yes --no-install-recommends stockfish \
    && rm -rf /var/lib/apt/lists/*

# The sources stay: Dagster reads the definitions from the project's folder.
WORKDIR /opt/fianchetto
COPY constraints.txt ./
RUN pip install --no-cache-dir --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
COPY . .
RUN pip install --no-cache-dir --editable ".[onnx]" -c constraints.txt \
    && useradd --create-home --uid 1000 fianchetto \
    && install --directory --owner fianchetto /home/fianchetto/datasets /home/fianchetto/dagster_home \
    && install --owner fianchetto dagster_home/dagster.yaml /home/fianchetto/dagster_home/ \
    && cp --recursive datasets/sample /home/fianchetto/datasets/

USER fianchetto
WORKDIR /home/fianchetto
ENV DAGSTER_HOME=/home/fianchetto/dagster_home FIANCHETTO_DATASETS=/home/fianchetto/datasets
# Machine code of this kind of processor: another kind compiles once, at its first start.
RUN fianchetto warmup
VOLUME ["/home/fianchetto/datasets", "/home/fianchetto/dagster_home"]
ENTRYPOINT ["fianchetto"]
CMD ["--help"]
