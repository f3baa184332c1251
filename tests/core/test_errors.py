"""Errors and their codes: every place passes one, every code is explained, and an error keeps it wherever it goes."""

from __future__ import annotations

import errno
import pickle
import re
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loose_files
from voxstill.audio import answered_error
from voxstill.audio.codec import SilentError
from voxstill.core import errors
from voxstill.core.errors import (
    ClusterError,
    ConfigError,
    DataError,
    Interrupted,
    StorageError,
    TeacherError,
    TrainingError,
    VoxstillError,
    first_line,
    system_code,
)
from voxstill.core.explanations import as_text, explanations
from voxstill.pipeline.options import explained
from voxstill.storage.fetch import RefusedError
from voxstill.storage.retry import storage_error

KINDS = (VoxstillError, ClusterError, ConfigError, DataError, StorageError, TeacherError, TrainingError)
TEXTS = st.text(max_size=20)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """`tools/errors_page.py`, which reads the code of the package."""
    return loose_files.load("tools/errors_page.py")


@pytest.fixture(scope="module")
def places(page: ModuleType) -> list[Any]:
    """The calls of the package that make errors."""
    return list(page.places())


def test_every_error_of_the_package_passes_a_code_that_is_explained(places: list[Any], page: ModuleType) -> None:
    known = {*explanations(), page.PASSED_ON}
    assert len(places) > 500
    assert [place.where for place in places if not place.codes] == []
    assert [(place.where, place.codes) for place in places if not known.issuperset(place.codes)] == []


def test_no_error_of_the_package_passes_the_general_code_of_a_kind(places: list[Any]) -> None:
    general = {kind.code for kind in KINDS}
    assert [place.where for place in places if general & set(place.codes)] == []


def test_every_explanation_is_that_of_a_code_that_is_used(places: list[Any]) -> None:
    used = {code for place in places for code in place.codes} | {kind.code for kind in KINDS}
    assert set(explanations()) - used == set()


def test_codes_are_slugs_in_the_order_of_the_alphabet_and_no_name_of_an_option() -> None:
    codes = list(explanations())
    assert codes == sorted(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+", code) for code in codes)
    assert len(set(codes)) == len(codes)
    assert set(codes) & {part for row in explained(None) for part in (row.path, row.path.partition(".")[0])} == set()


@pytest.mark.parametrize("code", explanations())
def test_an_explanation_is_a_few_sentences_that_end_in_where_more_stands(code: str) -> None:
    text = explanations()[code]
    assert 2 <= len(re.findall(r"\.(?:\s+|$)", text)) <= 7
    assert code == "other-error" or re.search(r"\]\([^)]+\)\.?", text)
    assert "](" not in as_text(text)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_without_a_code_has_the_general_one_of_its_kind(kind: type[VoxstillError]) -> None:
    error = kind("it broke")
    assert error.code == kind.code
    assert str(error) == f"error: it broke\n  more: voxstill explain {kind.code}"


def test_a_kind_of_another_package_has_the_general_code_of_the_kind_above_it() -> None:
    class OtherError(TeacherError):
        """An error of a plug-in."""

    assert OtherError("it broke").code == "teacher-error"


def test_an_interruption_has_nothing_to_explain() -> None:
    assert str(Interrupted("stopped", why="a signal")) == "error: stopped\n  why: a signal"


def test_the_first_line_of_an_error_does_not_name_its_code() -> None:
    assert first_line(DataError("it broke", code="table-broken")) == "error: it broke"


@pytest.mark.parametrize("kind", [*KINDS, SilentError, RefusedError, Interrupted])
@given(what=TEXTS, code=st.sampled_from(["", "disk-full", "of-another-package"]), why=TEXTS, fix=TEXTS)
def test_an_error_is_the_same_after_pickling(
    kind: type[VoxstillError], what: str, code: str, why: str, fix: str
) -> None:
    error = kind(what, code=code, why=why, fix=fix)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.to_dict(), str(copy)) == (error.to_dict(), str(error))


@pytest.mark.parametrize("kind", [VoxstillError, DataError, SilentError])
def test_an_error_is_the_same_in_the_answer_of_a_decoder(kind: type[VoxstillError]) -> None:
    error = kind("silent", code="audio-empty", why="every sample is zero", fix="remove the file")
    answer = answered_error.packed(error)["error"]
    assert isinstance(answer, list)
    copy = answered_error.unpacked(answer)
    assert (type(copy), copy.to_dict()) == (kind, error.to_dict())


@pytest.mark.parametrize("code", ["audio-empty; reboot", "audio-empty\n", "Audio"])
def test_an_answer_of_a_decoder_brings_no_text_into_the_command_that_explains(code: str) -> None:
    with pytest.raises(ValueError, match="no code"):
        answered_error.unpacked(["DataError", "silent", code, "", ""])


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EROFS, "no-permission"),
        (errno.EACCES, "no-permission"),
        (errno.ENOENT, "file-missing"),
        (errno.EIO, "storage-failed"),
    ],
)
def test_the_code_of_what_the_system_says_is_kept_by_storage(number: int, code: str) -> None:
    error = OSError(number, "in words")
    assert system_code(error) == code
    assert system_code(ValueError(f"I/O error: in words (os error {number})")) == code
    once = storage_error("write", "work/a", error)
    assert (once.code, storage_error("list", "work", once).code) == (code, code)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Generic S3 error: client error with status code: 403 Forbidden", "access-refused"),
        ("Generic S3 error: error: http://169.254.169.254/latest/api/token: timed out", "access-refused"),
        ("Generic S3 error: server error with status code: 503 Slow Down", "storage-unreachable"),
        ("HTTP error: error sending request: dns error: failed to lookup address", "storage-unreachable"),
        ("HTTP error: error sending request: Os { code: 111, kind: ConnectionRefused }", "storage-unreachable"),
        ("Generic HTTP error: builder error: BadScheme", "address-unusable"),
        ('Unable to recognise URL "ftp://a"', "address-unusable"),
        ("Permission denied (os error 13)", "no-permission"),
        ("Not a directory (os error 20)", "output-path"),
        ("something new", "storage-failed"),
    ],
)
def test_an_error_of_a_client_has_the_code_of_its_cause(message: str, code: str) -> None:
    assert storage_error("read", "s3://bucket/key", Exception(message)).code == code


def test_every_kind_is_on_the_page(page: ModuleType) -> None:
    kinds = (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, VoxstillError))
    assert {kind.__name__ for kind in kinds} - {"Interrupted"} == set(page.KINDS)
