from __future__ import annotations

import hashlib
import json

from hypothesis import example, given
from hypothesis import strategies as st

from voxstill.core.records import fingerprint

PARTS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())


@given(st.lists(PARTS))
@example(['naïve "quoted" \\ \n\u2028\x00', 2**70, -1, True, None, 0.1])
def test_a_fingerprint_is_the_hash_of_canonical_json(parts: list[object]) -> None:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert fingerprint(*parts) == hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
