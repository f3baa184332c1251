import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from voxstill import cli
from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.teachers import registry


def test_every_built_in_teacher_is_registered() -> None:
    for name in registry.TEACHERS:
        if name in registry.EXTRAS and find_spec(registry.EXTRAS[name][0]) is None:
            continue
        kind = registry.find(name)
        assert issubclass(kind.Options, config.Section)
        assert isinstance(kind.reads_texts, bool)


def test_a_teacher_gets_its_own_options() -> None:
    teacher = registry.create(config.Teacher(name="echo", substitute=0.25))
    assert teacher.options.substitute == 0.25


def test_an_option_that_is_misspelt_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no option `teacher\.substitue`") as caught:
        registry.create(config.Teacher(name="echo", substitue=0.25))
    assert "teacher.substitute" in caught.value.fix


def test_a_value_out_of_range_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.delete"):
        registry.create(config.Teacher(name="echo", delete=2.0))


def test_an_unknown_teacher_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no teacher `pocketsfinx`") as caught:
        registry.create(config.Teacher(name="pocketsfinx"))
    assert "pocketsphinx" in caught.value.fix


@pytest.mark.parametrize("name", registry.EXTRAS)
def test_a_teacher_whose_package_is_missing_names_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = registry.EXTRAS[name]
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "src")])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ConfigError, match=f"`{name}` is not installed") as caught:
        registry.find(name)
    assert caught.value.fix == f"pip install 'voxstill[{extra}]'"


def test_a_teacher_with_the_former_methods_is_refused_with_the_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "former-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: former\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[voxstill.teachers]\nformer = former_teacher:FormerTeacher\n")
    methods = "".join(f"    def {name}(self, *_): ...\n" for name in ("revision", "open", "hear", "close"))
    (tmp_path / "former_teacher.py").write_text(f"class FormerTeacher:\n{methods}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="`former` does not fit") as caught:
        registry.find("former")
    assert caught.value.why == "`FormerTeacher` has no method `load` and no `transcribe_batch`"
    assert "`open` is now `load`; `hear` is now `transcribe_batch`" in caught.value.fix


def test_a_preset_is_its_settings_and_what_stands_beside_it_wins(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("teacher: {preset: faster-whisper-small, beam_size: 2}\n")
    teacher = config.load(str(tmp_path / "my.yaml"), ["teacher.language=de"]).teacher
    assert teacher.model_dump() == {
        **config.TEACHER_PRESETS["faster-whisper-small"],
        "beam_size": 2,
        "language": "de",
    }
    section = config.Teacher(
        name="faster-whisper", model="Systran/faster-whisper-small", compute_type="int8", beam_size=5
    )
    assert config.Teacher.model_validate({"preset": "faster-whisper-small"}).model_dump() == section.model_dump()


@pytest.mark.parametrize("preset", config.TEACHER_PRESETS)
def test_every_preset_has_options_that_its_teacher_knows(preset: str) -> None:
    teacher = config.Teacher.model_validate({"preset": preset})
    if (
        teacher.name not in registry.TEACHERS
        or find_spec(registry.EXTRAS.get(teacher.name, ("voxstill", ""))[0]) is None
    ):
        pytest.skip(f"the teacher {teacher.name} is not here")
    registry.create(teacher)


def test_an_unknown_preset_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no preset `whisper-large-vllm`") as caught:
        config.load(None, ["teacher.preset=whisper-large-vllm"])
    assert "`whisper-large-v3-vllm`" in caught.value.fix


def test_presets_are_explained_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "teacher.preset"]) == 0
    out = capsys.readouterr().out
    assert "`parakeet-transformers` stands for name: transformers, model: nvidia/parakeet-tdt-0.6b-v3" in out
