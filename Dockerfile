# voxstill with all that its steps need: on a CPU, or with CUDA for NVIDIA GPUs.
#
#   docker build --tag voxstill .
#   docker build --tag voxstill --build-arg TORCH=cu130 .
#   docker run --volume "$PWD:/work" voxstill run my.yaml
#   docker run --publish 8000:8000 --volume ./mine-onnx:/models/mine:ro --env VOXSTILL_API_KEYS=... \
#     voxstill serve mine=/models/mine --host 0.0.0.0 --set serve.grace_s=5 --set serve.drain_s=20
#
# A container has 30 s from SIGTERM to SIGKILL on Kubernetes: the grace and the drain of a server must fit.
FROM docker.io/library/python:3.11-slim
# `cpu`, or a version of CUDA that PyTorch has wheels for
ARG TORCH=cpu
ARG EXTRAS=explore,export,gpu,ray-serve,ray-train
RUN useradd --uid 1000 --create-home voxstill
WORKDIR /opt/voxstill
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt torch \
        --index-url "https://download.pytorch.org/whl/${TORCH}" \
    && pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
USER 1000
WORKDIR /work
ENTRYPOINT ["voxstill"]
CMD ["--help"]
