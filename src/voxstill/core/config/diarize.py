"""Options of diarization: which engine finds who speaks when."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from voxstill.core.config.section import option


class Diarize(BaseModel):
    """Who speaks when in recordings whose manifest does not say. Each engine brings options of its own."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    name: str | None = option(None)
    """`embedded` (its weights are those of `pip install --no-deps resemblyzer==0.1.4`), `sherpa-onnx`, `transformers`,
    or `command` (any program). Unset: recordings are not diarized."""
