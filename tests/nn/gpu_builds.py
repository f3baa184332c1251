"""Builds of Triton kernels for a GPU that need none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def build(
    kernel: Any, type_of: Callable[[str], str], constants: Mapping[str, Any], capability: int, **options: Any
) -> Any:
    """What Triton compiles for a CUDA capability; `constants` may be of other kernels, too."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    own = {param.name: constants[param.name] for param in kernel.params if param.is_constexpr}
    types = {name: "constexpr" if name in own else type_of(name) for name in kernel.arg_names}
    source: Any = ASTSource(kernel, types, own)
    built: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert built.asm["cubin"]
    return built
