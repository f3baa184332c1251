"""A corpus: each fault that it is given is named first, and is gone when it is mended; a sound one has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_faults import corpora
from voxstill.core import config
from voxstill.pipeline.doctor import look
from voxstill.pipeline.doctor.checks import Check


def looked_at(work: Path) -> list[Check]:
    return list(look.doctor(str(work), config.load(None, [])).checks)


def test_a_part_of_a_table_that_is_missing_is_named(tmp_path: Path) -> None:
    fault = next(iter(corpora.FAULTS))(tmp_path)
    with fault.induced():
        assert {check.name: check.state for check in looked_at(fault.work)}["tables"] == "ok"
        next((fault.work / "utterances").glob("*/*.parquet")).unlink()
        [tables] = [check for check in looked_at(fault.work) if check.name == "tables"]
        assert tables.state == "fail"
        assert tables.fix


@pytest.mark.parametrize("kind", corpora.FAULTS, ids=lambda kind: kind.name)
def test_a_fault_of_a_corpus_is_named_first_and_a_sound_one_has_none(kind, tmp_path: Path) -> None:
    fault = kind(tmp_path)
    with fault.induced():
        first = looked_at(fault.work)[0]
        assert (first.name, first.part) == (fault.check, "corpus")
        assert first.state != "ok"
        assert first.fix
        with fault.mended(first.fix):
            assert [check for check in looked_at(fault.work) if check.state != "ok" and check.part == "corpus"] == []
