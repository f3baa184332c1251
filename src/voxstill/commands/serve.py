"""voxstill serve."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from voxstill.core.command import CommonOptions, command


@command("serve", panel="Inference", position=5)
def serve(
    options: CommonOptions,
    models: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]MODEL[@WEIGHT]...",
            show_default=False,
            help="Models with the names that clients request; models of the same name share its requests by weight.",
        ),
    ],
    host: Annotated[str, Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", min=0, max=65_535, help="0: the system chooses a free port.")] = 8000,
    engine: Annotated[
        Literal["auto", "torch", "onnx"], Option("--engine", help="auto: onnx for exported models, else torch.")
    ] = "auto",
    ray: Annotated[
        bool, Option("--ray", help="Serve replicas on Ray: see serve.min_replicas, and engine.address for a cluster.")
    ] = False,
) -> None:
    """Serve students as a transcription server with OpenAI's API."""
    from voxstill.core import monitor
    from voxstill.pipeline import serve as server
    from voxstill.pipeline import serve_on_ray

    start = serve_on_ray.serve if ray else server.serve
    with monitor.describing(lambda: None):  # a server without requests has nothing to say
        start(options.load(), models, host, port, engine, options.show)
