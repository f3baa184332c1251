"""One command from argv: data to standard output, the rest to standard error, an exit code by kind of error.

The only place that catches VoxstillError. `--help` loads no torch, no ray and no audio library.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from voxstill import __version__

Handler = Callable[[argparse.Namespace], dict[str, Any]]
INTERRUPTED = 130
TEXT = "_text"
"""What a command prints for people instead of its figures; never in its JSON."""
CODE = "_code"
"""Exit code of a command that did its work although some of its input was bad; never in its JSON."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, that of the error's kind, or 130 when interrupted."""
    args = parser().parse_args(argv)
    from voxstill import monitor, world
    from voxstill.errors import StorageError, VoxstillError
    from voxstill.monitor import log

    monitor.start_logging(args.log_level or "info")
    world.pin_threads(1)
    try:
        result = args.run(args)
    except VoxstillError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:  # what no room below could put in better words: a full disk while a report is written
        told = StorageError(
            f"cannot use `{error.filename}`" if error.filename else "a file cannot be read or written",
            why=error.strerror or str(error),
            fix="check the path, the rights and the free space; the same command goes on where this one stopped",
        )
        print(told, file=sys.stderr)  # noqa: T201
        log.debug("where it happened", exc_info=error)
        return told.exit_code
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where this one stopped", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    if not result:  # one of several processes, and another has the figures
        return 0
    text, code = result.pop(TEXT, None), result.pop(CODE, 0)
    try:
        print(json.dumps(result, ensure_ascii=False) if args.json else text or _plain(result), flush=True)  # noqa: T201
    except BrokenPipeError:  # `| head` has read enough
        sys.stdout = None
    return int(code)


def parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    top = argparse.ArgumentParser(
        prog="voxstill",
        description="Distil a large speech recogniser into a small one of your own.",
        epilog="Start with `voxstill demo`, then `voxstill init > my.yaml` and `voxstill run my.yaml`.",
    )
    top.add_argument("--version", action="version", version=f"voxstill {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Handler, text: str, *aliases: str, of: Any = commands) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = of.add_parser(name, help=text, description=text, aliases=list(aliases))
        sub.set_defaults(run=run)
        common = sub.add_argument_group("common options")
        common.add_argument(
            "--json", action="store_true", help="one JSON object on standard output, nothing else there"
        )
        common.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="section.key=value, repeatable"
        )
        common.add_argument("--config", metavar="FILE", help="YAML configuration")
        common.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
        common.add_argument("--yes", action="store_true", help="ask nothing")
        return sub

    sub = command("demo", demo, "the whole line on a corpus it makes itself: no network, no GPU, six minutes")
    sub.add_argument("--work", default="work/demo", help="folder for the corpus and everything made from it")
    sub = command("run", line, "the whole line, finished steps skipped")
    sub.add_argument("config_file", metavar="CONFIG")
    sub.add_argument("--max-batches", type=int, metavar="N", help="train at most so many steps: to see the line work")
    sub.add_argument("--rehearse", action="store_true", help="a few files, a few steps, in folders of their own")
    sub = command("init", init, "a commented configuration", "create-config")
    sub.add_argument("--output", metavar="FILE", help="write it there instead of standard output")
    sub = command("explain", explain, "every option: unit, default, meaning")
    sub.add_argument("section", nargs="?", metavar="SECTION")
    sub.add_argument("--hear", choices=["augment"], help="write audio of the source as it is and as a student hears it")
    sub.add_argument("--output", metavar="FOLDER", help="where to write what is heard; without it, the folder `heard`")
    sub = command("index", index, "find recordings and cut them into utterances")
    sub.add_argument("source", nargs="+", metavar="SOURCE", help="folder, audio file or JSONL manifest")
    sub.add_argument("--work", required=True, help="folder or bucket prefix of the tables")
    for name, run, text in (
        ("label", label, "a teacher's label for every utterance"),
        ("filter", filter_, "a verdict with its reason for every label"),
        ("shard", shard, "what was kept as WebDataset tars with sidecars"),
    ):
        sub = command(name, run, text)
        sub.add_argument("work", metavar="WORK")
        if name == "label":
            sub.add_argument("--max-chunks", type=int, metavar="N", help="stop after so many chunks; resumable")
            sub.add_argument("--limit-hours", type=float, metavar="H", help="stop after so much audio; resumable")
        if name == "filter":
            sub.add_argument("--tune", action="store_true", help="propose thresholds by human texts; judge nothing")
        if name == "shard":
            sub.add_argument("--from", nargs="+", dest="source", metavar="SOURCE", help="repack these tars or folders")
            sub.add_argument("--unlabelled", action="store_true", help="all utterances, without labels: for pretrain")
    sub = command("control", control, "what a running labelling job shall do otherwise: --set teacher.revision=...")
    sub.add_argument("work", metavar="WORK")
    sub.add_argument("--clear", action="store_true", help="take back all that was asked for before")
    sub = command("compare-teachers", compare_teachers, "labels of several teachers side by side")
    sub.add_argument("work", metavar="WORK")
    sub.add_argument("recipes", nargs="*", metavar="RECIPE", help="of finished labels; default: all that are there")
    sub.add_argument("--report", metavar="FILE", help="write a page to look at and listen to")
    sub.add_argument("--price-per-hour", type=price, metavar="X", help="of what labels: tells the cost of each")
    sub = command("plan", plan, "the batches of an epoch, before any audio is read")
    sub.add_argument("where", metavar="WORK_OR_SIDECARS", help="work folder, shards, or Parquet with `duration_ms`")
    sub.add_argument("--ranks", type=int, default=1, metavar="N", help="processes that train together")
    sub.add_argument("--budget", type=milliseconds, metavar="TIME", help="most audio in a batch: 300s, 5m, 90000ms")
    sub.add_argument("--epoch", type=int, default=0)
    sub.add_argument("--seed", type=int)
    sub.add_argument("--layout", choices=("local", "remote"), help="shuffle everything, or a few shards at a time")
    sub = command("pretrain", pretrain, "a model that has heard much and was told nothing, to start students from")
    sub.add_argument("config_file", metavar="CONFIG")
    sub = command("train", train, "a student in an experiment folder")
    sub.add_argument("config_file", metavar="CONFIG")
    sub = command("train-lm", train_lm, "a language model for decoding, from texts or the labels of a corpus")
    sub.add_argument("source", metavar="SOURCE", help="text file, folder of .txt files, or work folder with shards")
    sub.add_argument("--output", required=True, metavar="FILE", help="ARPA file; gzipped where it ends in .gz")
    sub.add_argument("--order", type=int, default=3, choices=range(1, 8), metavar="N", help="longest n-gram, up to 7")
    sub = command("evaluate", evaluate, "error rates of a student with intervals, or how well it tells classes apart")
    sub.add_argument("model", metavar="EXP_OR_MODEL")
    sub.add_argument("--on", metavar="SPLIT", choices=("train", "dev", "test"), help="default: evaluate.split")
    sub.add_argument("--work", help="where the utterances are; default: that of the experiment's own configuration")
    text = "error rates of files that anybody made"
    more = "Each takes --json, --set, --config, --log-level and --yes, as every command does."
    group = commands.add_parser("score", help=text, description=text, epilog=more)
    scores = group.add_subparsers(title="commands", metavar="WHAT", required=True)
    sub = command("words", score_words, "WER and CER of two files of texts, matched by id", of=scores)
    sub.add_argument("reference", metavar="REF", help="what was said: Kaldi text, JSONL, STM, TRN")
    sub.add_argument("hypothesis", metavar="HYP", help="what was heard: the same, or CTM beside an STM")
    text_options(sub)
    sub.add_argument("--cer", action="store_true", help="count, break down and show characters instead of words")
    sub.add_argument("--by", choices=("speaker",), help="a line for each speaker")
    sub = command("speakers", score_speakers, "who spoke when: the diarization error rate of two RTTMs", of=scores)
    sub.add_argument("reference", metavar="REF")
    sub.add_argument("hypothesis", metavar="HYP")
    sub.add_argument(
        "--uem", metavar="FILE", help="what is judged; default: from the reference's first turn to its last"
    )
    sub.add_argument(
        "--collar", type=seconds, default=0.0, metavar="S", help="seconds not judged either side of a turn"
    )
    sub.add_argument("--audio", metavar="FOLDER_OR_FILE", help="the recordings: turns after their end are told")
    sub.add_argument("--ignore-overlap", action="store_true", help="judge only where one speaker of REF speaks")
    sub = command("meeting", score_meeting, "who said what: cpWER and tcpWER of two files with speakers", of=scores)
    sub.add_argument("reference", metavar="REF", help="STM, SegLST, or JSONL with `session` and `speaker`")
    sub.add_argument("hypothesis", metavar="HYP")
    text_options(sub)
    sub.add_argument("--collar", type=seconds, default=5.0, metavar="S", help="of tcpWER, in seconds (default: 5)")
    sub = command("compare", compare, "whether one of two recognisers makes fewer errors, and how sure that is")
    sub.add_argument("first", metavar="RUN_A", help="an experiment that was evaluated, or a file of hypotheses")
    sub.add_argument("second", metavar="RUN_B")
    sub.add_argument("--ref", metavar="REF", help="what was said; experiments know it")
    sub.add_argument("--report", metavar="FILE", help="write a page with every utterance as both heard it")
    sub.add_argument("--on", metavar="SPLIT", choices=("train", "dev", "test"), help="default: evaluate.split")
    text_options(sub)
    sub = command("doctor", doctor, "what was wrong with a step that training skipped")
    sub.add_argument("experiment", metavar="EXP")
    sub.add_argument("--batch", required=True, metavar="FILE", help="a file of its folder `skipped`")
    sub = command("transcribe", transcribe, "audio files in, words with times out")
    sub.add_argument("model", metavar="MODEL")
    sub.add_argument("audio", nargs="+", metavar="AUDIO")
    sub.add_argument("--format", default="text", choices=("text", "srt", "vtt", "json"))
    sub.add_argument("--output", metavar="FOLDER", help="one file for each audio file, instead of standard output")
    return top


def text_options(sub: argparse.ArgumentParser) -> None:
    """What all that compares files of texts can be told."""
    forms = ("kaldi", "text", "jsonl", "trn", "stm", "ctm", "seglst")
    sub.add_argument("--form", choices=forms, help="of both files; default: by ending, else Kaldi's `id words ...`")
    sub.add_argument("--lang", metavar="LANGUAGE", help="takes the normalizer of this language: en, zh, tr, ar, ...")
    sub.add_argument("--normalizer", metavar="NAME", help="none, basic, zh, tr, ar, whisper, whisper:FILE")


def load(args: argparse.Namespace, *overrides: str, base: str | None = None) -> Any:
    """The configuration of this command: file, environment, what the command line means, `--set`."""
    from voxstill import config, monitor, world
    from voxstill.monitor import METRICS

    path = base or args.config
    level = [f"monitor.log_level={args.log_level}"] if args.log_level else []
    cfg = config.load(path, [*overrides, *args.set, *level], world.environment())
    monitor.set_level(cfg.monitor.log_level)
    if cfg.monitor.port is not None:
        METRICS.serve(cfg.monitor.host, cfg.monitor.port)
    return cfg


def demo(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill demo`."""
    from voxstill.commands import line as page

    return page.demo(load(args, f"work={json.dumps(args.work)}", *page.DEMO), args.work)


def line(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill run`."""
    few = [] if args.max_batches is None or args.rehearse else [f"train.steps={args.max_batches}"]
    cfg = load(args, *few, base=args.config_file)
    from voxstill.commands import line as page
    from voxstill.commands import rehearsal

    return rehearsal.rehearse(cfg, args.max_batches) if args.rehearse else page.run(cfg)


def init(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill init`."""
    from pathlib import Path

    from voxstill import config
    from voxstill.errors import ConfigError
    from voxstill.store import Store

    text = config.template()
    if args.output is None:
        return {"template": text, TEXT: text.rstrip()}
    path = Path(args.output)
    if path.exists() and not args.yes:
        raise ConfigError(f"`{path}` exists", why="it would be overwritten", fix="name another file, or add --yes")
    Store(str(path.parent)).replace(path.name, text.encode())
    return {"path": str(path)}


def explain(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill explain`."""
    from pathlib import Path

    from voxstill.commands import inspect

    if args.hear:
        from voxstill.commands import hear

        files = hear.augmentation(load(args), Path(args.output or "heard"))
        return {"files": files, TEXT: "\n".join(f"{each['file']}: {each['what']}" for each in files)}
    rows = inspect.explain(args.section)
    lines = []
    for row in rows:
        unit = f" [{row.unit}]" if row.unit else ""
        limits = f", {row.limits}" if row.limits else ""
        lines.append(f"{row.path}{unit} = {json.dumps(row.default, ensure_ascii=False)}")
        lines.append(f"    {row.meaning} ({row.type}{limits})")
    return {"options": inspect.as_rows(rows), TEXT: "\n".join(lines)}


def index(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill index`."""
    cfg = load(args, f"work={json.dumps(args.work)}", f"source.uri={json.dumps(args.source)}")
    from voxstill.commands import prepare

    return prepare.index(cfg)


def label(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill label`."""
    cfg = load(args, f"work={json.dumps(args.work)}")
    from voxstill.commands import prepare

    return prepare.label_(cfg, max_chunks=args.max_chunks, limit_hours=args.limit_hours)


def filter_(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill filter`."""
    cfg = load(args, f"work={json.dumps(args.work)}")
    from voxstill.commands import prepare, tune

    if args.tune:
        found = tune.tune(cfg)
        return {**found, TEXT: tune.picture(found)}
    return prepare.filter_(cfg)


def control(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill control`."""
    from voxstill import config, world

    # `--set` is for the job; and not `load`, for that would want the port of the job's metrics
    cfg = config.load(args.config, [f"work={json.dumps(args.work)}"], world.environment())
    from voxstill.commands import control as page

    found = page.control(cfg, args.set, clear=args.clear)
    return {**found, TEXT: page.table(found)}


def compare_teachers(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill compare-teachers`."""
    cfg = load(args, f"work={json.dumps(args.work)}")
    from voxstill.commands import teachers

    found = teachers.compared(cfg, args.recipes, args.price_per_hour)
    if args.report is not None:
        found["report"] = written(teachers.page(cfg, found), args.report)
    return {**found, TEXT: teachers.table(found)}


def written(page: str, file: str) -> str:
    """The path of a page, which is there whole or not at all."""
    from pathlib import Path

    from voxstill.store import Store

    path = Path(file)
    Store(str(path.parent)).replace(path.name, page.encode())
    return str(path)


def shard(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill shard`."""
    from voxstill.commands import prepare

    if args.source:
        given = f"work={json.dumps(args.work)}", f"source.uri={json.dumps(args.source)}"
        return prepare.repack(load(args, *given, *prepare.REPACK))
    cfg = load(args, f"work={json.dumps(args.work)}")
    return prepare.shard_unlabelled(cfg) if args.unlabelled else prepare.shard(cfg)


def not_negative(what: str, example: str) -> Callable[[str], float]:
    """A reader of numbers of 0 or more, which says what it wanted of any other."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise argparse.ArgumentTypeError(f"`{text}` is no {what}: write a number such as {example}")
        return value

    return read


price, seconds = not_negative("price", "2.5"), not_negative("time in seconds", "0.25")


def milliseconds(text: str) -> int:
    """What `300s`, `5m`, `1.5h` or `90000ms` means; a number alone is seconds."""
    number = text.rstrip("hms")
    unit = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "h": 3_600_000}.get(text[len(number) :])
    try:
        value = float(number) * (unit or math.nan)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is no time: write 300s, 5m or 90000ms")
    return round(value)


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill plan`."""
    given = {"plan.budget_ms": args.budget, "seed": args.seed, "plan.layout": args.layout}
    cfg = load(args, *(f"{name}={value}" for name, value in given.items() if value is not None))
    from voxstill.commands import plans

    made, figures = plans.plan_(args.where, args.ranks, args.epoch, cfg)
    return {**figures, TEXT: plans.picture(made, figures)}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill train`."""
    cfg = load(args, base=args.config_file)
    from voxstill.commands import train as page  # a wrong option is told before anything heavy is loaded

    return page.train(cfg)


def train_lm(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill train-lm`."""
    cfg = load(args)
    from voxstill.commands import language

    return language.train_lm(cfg, args.source, args.output, args.order)


def pretrain(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill pretrain`."""
    cfg = load(args, base=args.config_file)
    from voxstill.commands import pretrain as page

    return page.pretrain(cfg)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill evaluate`."""
    from pathlib import Path

    from voxstill.commands import evaluate as page

    own = Path(args.model) / "config.yaml"
    overrides = [f"evaluate.split={args.on}"] if args.on else []
    overrides += [f"work={json.dumps(args.work)}"] if args.work else []
    base = args.config or (str(own) if own.is_file() else None)
    evaluation = page.evaluate(load(args, *overrides, base=base), args.model)
    return {**evaluation.figures, TEXT: _plain(evaluation.summary)}


def score_words(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill score words`."""
    cfg = load(args)
    from voxstill.commands import score

    found = score.of_words(
        cfg,
        args.reference,
        args.hypothesis,
        form=args.form,
        language=args.lang,
        normalizer=args.normalizer,
        unit="characters" if args.cer else "words",
        by_speaker=args.by == "speaker",
    )
    return {**found, TEXT: score.picture(found)}


def score_speakers(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill score speakers`."""
    cfg = load(args)
    from voxstill.commands import score

    given = {"uem": args.uem, "collar_s": args.collar, "ignore_overlap": args.ignore_overlap, "audio": args.audio}
    found = score.of_speakers(cfg, args.reference, args.hypothesis, **given)
    return {**found, TEXT: score.picture_of_speakers(found)}


def score_meeting(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill score meeting`."""
    cfg = load(args)
    from voxstill.commands import score

    given = {"form": args.form, "language": args.lang, "normalizer": args.normalizer, "collar_s": args.collar}
    found = score.of_meetings(cfg, args.reference, args.hypothesis, **given)
    return {**found, TEXT: score.picture_of_meetings(found)}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill compare`."""
    cfg = load(args, *([f"evaluate.split={args.on}"] if args.on else []))
    from voxstill.commands import compare as page

    given = {"form": args.form, "language": args.lang, "normalizer": args.normalizer}
    both = page.sides(cfg, args.first, args.second, args.ref, **given)
    found = page.runs(cfg, both)
    if args.report is not None:
        from voxstill.commands import pages  # torch comes with it

        found["report"] = written(pages.comparison(cfg, both, found), args.report)
    return {**found, TEXT: page.verdict(found)}


def doctor(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill doctor`."""
    from voxstill.commands import diagnose

    figures = diagnose.replay(args.experiment, args.batch)
    return {**figures, TEXT: diagnose.table(figures)}


def transcribe(args: argparse.Namespace) -> dict[str, Any]:
    """`voxstill transcribe`."""
    from pathlib import Path

    from voxstill.commands import ship
    from voxstill.errors import DataError
    from voxstill.monitor import log

    transcripts = ship.transcribe(load(args), args.model, args.audio)
    for each in transcripts:
        if each["error"] is not None:
            log.error("%s: %s", each["audio"], each["error"])
    code = 0 if all(each["error"] is None for each in transcripts) else DataError.exit_code
    if args.output is not None:
        paths = ship.write_all(transcripts, args.format, Path(args.output))
        return {"transcripts": transcripts, TEXT: "\n".join(str(path) for path in paths), CODE: code}
    sound = [each for each in transcripts if each["error"] is None]
    named = args.format == "text" and len(args.audio) > 1
    texts = [(f"{each['audio']}: " if named else "") + ship.render(each, args.format) for each in sound]
    return {"transcripts": transcripts, TEXT: "\n".join(texts) or " ", CODE: code}


def _plain(result: dict[str, Any]) -> str:
    """Figures as aligned lines; what is nested is one JSON line."""
    width = max((len(key) for key in result), default=0)

    def show(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:,.4f}".rstrip("0").rstrip(".")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return "\n".join(f"{key:<{width}}  {show(value)}" for key, value in result.items())


if __name__ == "__main__":
    sys.exit(main())
