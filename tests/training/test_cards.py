"""Accelerators are found by the names that people and drivers give them."""

from __future__ import annotations

import pytest

from voxstill.core.errors import ConfigError
from voxstill.training import cards


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("h200", "h200"),
        ("H100", "h100"),
        ("NVIDIA A100 80GB", "a100-80"),
        ("a100-40", "a100-40"),
        ("A100", "a100-80"),
        ("RTX 4090", "rtx4090"),
        ("GeForce RTX 3090", "rtx3090"),
        ("l4", "l4"),
        ("L40S", "l40s"),
    ],
)
def test_a_card_is_found_however_it_is_written(name: str, card: str) -> None:
    assert cards.find(name).name == card


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("NVIDIA A10G", "a10"),
    ],
)
def test_a_card_is_known_by_the_name_of_its_driver(name: str, card: str) -> None:
    accelerator = cards.named_by_driver(name)
    assert accelerator is not None
    assert accelerator.name == card


def test_a_card_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="gtx480") as refused:
        cards.find("gtx480")
    assert "h200" in refused.value.why
    assert cards.named_by_driver("Radeon VII") is None
