import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from installed import install
from voxstill import cli, teachers
from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.teachers import registry

GROUP = "voxstill.teachers"
EXTRAS = {"faster-whisper": ("faster_whisper", "whisper"), "sherpa": ("sherpa_onnx", "sherpa")}
"""Teacher -> the package that it needs, and the extra of voxstill that installs it."""


def test_every_file_of_a_teacher_is_a_teacher() -> None:
    built_in = {
        "consensus",
        "corrected",
        "echo",
        "openai",
        "pocketsphinx",
        "reference",
        "student",
        "transformers",
        "vllm",
    }
    built_in |= {*EXTRAS}
    assert built_in <= {*registry.TEACHERS.built_in()}
    for name in registry.TEACHERS.built_in():
        if name in EXTRAS and find_spec(EXTRAS[name][0]) is None:
            continue
        kind = registry.find(name)
        assert issubclass(kind.Options, config.Section)
        assert isinstance(kind.reads_texts, bool)


def test_a_new_file_is_a_teacher_under_its_name_and_is_not_imported_to_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new_one.py").write_text(
        "from voxstill.core.config import Section\nfrom voxstill.teachers.echo import EchoTeacher\n"
        "class Options(Section): ...\nclass NewTeacher(EchoTeacher):\n    Options = Options\n"
    )
    monkeypatch.setattr(teachers, "__path__", [*teachers.__path__, str(tmp_path)])
    assert "new-one" in registry.TEACHERS.names()
    assert "voxstill.teachers.new_one" not in sys.modules
    assert type(registry.create(config.Teacher(name="new-one"))).__name__ == "NewTeacher"
    assert "new-one" in [name for name, _ in registry.TEACHERS.all()]


def test_a_teacher_gets_its_own_options() -> None:
    teacher = registry.create(config.Teacher(name="echo", substitute=0.25))
    assert teacher.options.substitute == 0.25


def test_an_option_that_is_misspelt_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"unknown option `teacher\.substitue`") as caught:
        registry.create(config.Teacher(name="echo", substitue=0.25))
    assert "teacher.substitute" in caught.value.fix


def test_a_value_out_of_range_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.delete"):
        registry.create(config.Teacher(name="echo", delete=2.0))


def test_an_unknown_teacher_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown teacher `pocketsfinx`") as caught:
        registry.create(config.Teacher(name="pocketsfinx"))
    assert "pocketsphinx" in caught.value.fix


@pytest.mark.parametrize("name", EXTRAS)
def test_a_teacher_whose_package_is_missing_names_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = EXTRAS[name]
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
    methods = "".join(f"    def {name}(self, *_): ...\n" for name in ("revision", "open", "hear", "close"))
    install(tmp_path, monkeypatch, GROUP, "former", f"class FormerTeacher:\n{methods}", "FormerTeacher")
    with pytest.raises(ConfigError, match="`former` of the package `other-former` does not fit") as caught:
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
        teacher.name not in registry.TEACHERS.built_in()
        or find_spec(EXTRAS.get(teacher.name, ("voxstill", ""))[0]) is None
    ):
        pytest.skip(f"the teacher {teacher.name} is not here")
    registry.create(teacher)


def test_an_unknown_preset_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown teacher preset `whisper-large-vllm`") as caught:
        config.load(None, ["teacher.preset=whisper-large-vllm"])
    assert "`whisper-large-v3-vllm`" in caught.value.fix


def test_presets_are_explained_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "teacher.preset"]) == 0
    out = capsys.readouterr().out
    assert "`parakeet-transformers` stands for name: transformers, model: nvidia/parakeet-tdt-0.6b-v3" in out


def test_a_broken_teacher_of_another_package_is_named_and_no_trouble_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, GROUP, "broken", "raise RuntimeError('no licence')")
    with pytest.raises(ConfigError, match="the teacher `broken` of the package `other-broken` cannot be") as caught:
        registry.find("broken")
    assert caught.value.why == "RuntimeError: no licence"
    assert registry.create(config.Teacher(name="echo"))
    assert cli.main(["explain", "teacher"]) == 0
    printed = capsys.readouterr()
    assert "(echo)" in printed.out
    assert "other-broken" in printed.err


def test_a_package_is_known_from_its_installation_to_its_removal_and_searched_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, GROUP, "passing", "")
    registry.TEACHERS.check_name("passing")
    assert registry.TEACHERS._entry_points() is registry.TEACHERS._entry_points()
    shutil.rmtree(tmp_path / "other_passing-1.0.dist-info")
    with pytest.raises(ConfigError, match="unknown teacher `passing`"):
        registry.TEACHERS.check_name("passing")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("VALUE = 3", "3 is not a class"),
        ("class VALUE:\n    revision = load = transcribe_batch = close = print", "`VALUE.Options` is not a class"),
        ("class VALUE:\n    revision = load = transcribe_batch = close = 3", "`VALUE` has no method `revision`"),
    ],
)
def test_what_is_no_teacher_is_refused_in_words(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, GROUP, "odd", code)
    with pytest.raises(ConfigError, match="`odd` of the package `other-odd` does not fit") as caught:
        registry.find("odd")
    assert caught.value.why.startswith(why)


def test_another_package_cannot_take_the_name_of_a_teacher_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch, GROUP, "echo", "VALUE = 3")
    with pytest.raises(ConfigError, match="the package `other-echo` has a teacher `echo`"):
        registry.create(config.Teacher(name="echo"))
    with caplog.at_level("WARNING"):
        assert [name for name, _ in registry.TEACHERS.all()].count("echo") == 1
    assert "left out: the package `other-echo`" in caplog.text
