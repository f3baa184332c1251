# voxstill with all that its steps need. torch comes from PyPI, with CUDA; from an index of PyTorch's own for CPUs it is
# gigabytes smaller (pytorch.org/get-started has the addresses). Nothing but torch itself is taken from that index.
#
#   docker build --tag voxstill .
#   docker build --tag voxstill --build-arg TORCH_INDEX=ADDRESS_FOR_CPUS .
#   docker run --volume "$PWD:/work" voxstill run my.yaml
#   docker run --publish 8000:8000 --volume ./mine-onnx:/models/mine:ro --env VOXSTILL_API_KEYS=... \
#     voxstill serve mine=/models/mine --host 0.0.0.0 --set serve.grace_s=5 --set serve.drain_s=20
#
# A container has 30 s from SIGTERM to SIGKILL on Kubernetes: the grace and the drain of a server must fit.
FROM docker.io/library/python:3.11-slim
ARG TORCH_INDEX=
ARG EXTRAS=explore,export,gpu,ray-serve,ray-train
# with CUDA the compiler that Triton builds the kernels of a training with; its version is that of the base image
# hadolint ignore=DL3008
RUN if [ -z "${TORCH_INDEX}" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 1000 --create-home voxstill
WORKDIR /opt/voxstill
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN if [ -n "${TORCH_INDEX}" ]; then \
        pip install --no-cache-dir --no-deps --constraint constraints.txt --index-url "${TORCH_INDEX}" torch; \
    fi \
    && pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
USER 1000
WORKDIR /work
ENTRYPOINT ["voxstill"]
CMD ["--help"]
