"""Runs `main` of the command line, or of another module, in children of itself, each with a fault.

An order is a line of JSON in, the answer a line out.

What is slow to load is loaded once. Nothing that starts a thread may happen before the fork.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys

import av  # noqa: F401
import kaldialign  # noqa: F401
import lightning_fabric  # noqa: F401
import obstore.store  # noqa: F401
import pyarrow.parquet  # noqa: F401
import torch.utils.tensorboard  # noqa: F401
import transformers.modeling_utils  # noqa: F401

from narrow_models import STUDENT
from torture import small_training  # noqa: F401
from voxstill import cli  # noqa: F401
from voxstill.nn import students
from voxstill.pipeline import end_to_end, evaluate, transcribe  # noqa: F401


def suffer(order: dict[str, object]) -> int:
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    arm = ctypes.CDLL(None).faults_arm
    arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    arm(str(order["below"]).encode(), order["at"], order["kind"], str(order["trace"]).encode())
    target = importlib.import_module(str(order["target"]))
    return target.main([str(argument) for argument in order["arguments"]])  # type: ignore[attr-defined]


def main() -> None:
    students.SHAPES["tiny"] = STUDENT  # what is learnt is the same with and without a fault
    tell("ready")
    for asked in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.exit(suffer(json.loads(asked)))
        tell(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def tell(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
