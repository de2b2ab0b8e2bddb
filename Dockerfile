# Fianchetto in a container, with its kernels compiled. docs/guides/containers.md says how to run it.
FROM python:3.12-slim

# PyPI's torch contains CUDA. pip also looks for packages here, such as in the index of torch's
# smaller builds for the processor alone, which pytorch.org names.
ARG PIP_EXTRA_INDEX_URL

RUN apt-get update \
    && apt-get install --yes --no-install-recommends stockfish \
    && rm -rf /var/lib/apt/lists/*

# The sources stay: Dagster reads the definitions from the project's folder.
WORKDIR /opt/fianchetto
COPY constraints.txt ./
RUN pip install --no-cache-dir torch==2.13.0 -c constraints.txt
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
