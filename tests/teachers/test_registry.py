import pytest

from voxstill import config
from voxstill.errors import ConfigError
from voxstill.teachers import registry


def test_every_teacher_of_ours_can_be_found() -> None:
    for name in registry.TEACHERS:
        kind = registry.find(name)
        assert issubclass(kind.Options, config.Section)
        assert isinstance(kind.reads_texts, bool)


def test_a_teacher_gets_its_own_options() -> None:
    teacher = registry.make(config.Teacher(name="echo", substitute=0.25))
    assert teacher.options.substitute == 0.25


def test_an_option_that_is_misspelt_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no option `teacher\.substitue`") as caught:
        registry.make(config.Teacher(name="echo", substitue=0.25))
    assert "teacher.substitute" in caught.value.fix


def test_a_value_out_of_range_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.delete"):
        registry.make(config.Teacher(name="echo", delete=2.0))


def test_an_unknown_teacher_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no teacher `pocketsfinx`") as caught:
        registry.make(config.Teacher(name="pocketsfinx"))
    assert "pocketsphinx" in caught.value.fix
