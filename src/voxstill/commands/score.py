"""voxstill score."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from voxstill.core.command import CommonOptions, FormOption, LanguageOption, NormalizerOption, command, seconds
from voxstill.core.result import ReportResult, Result


@command("words", panel="Evaluation", position=3, group="score")
def words(
    options: CommonOptions,
    reference: Annotated[str, Argument(metavar="REF", help="References: Kaldi text, JSONL, STM, TRN.")],
    hypothesis: Annotated[
        str, Argument(metavar="HYP", help="Hypotheses: the same formats, or CTM with STM references.")
    ],
    form: FormOption = None,
    lang: LanguageOption = None,
    normalizer: NormalizerOption = None,
    cer: Annotated[
        bool | None,
        Option("--cer/--no-cer", help="Count words or characters; default: words, if the text has spaces."),
    ] = None,
    by: Annotated[
        str | None, Option("--by", metavar="FIELD", help="Error rates per speaker, or per value of a JSONL field.")
    ] = None,
    show: Annotated[
        int, Option("--show", metavar="N", min=0, help="Show the alignments of the N utterances with the most errors.")
    ] = 0,
) -> Result:
    """WER and CER of two files of texts, matched by id."""
    cfg = options.load()
    from voxstill.evaluation import score

    scores = score.of_words(
        cfg,
        reference,
        hypothesis,
        form=form,
        language=lang,
        normalizer=normalizer,
        unit=None if cer is None else "characters" if cer else "words",
        by=by,
        show=show,
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


@command("speakers", panel="Evaluation", position=4, group="score")
def speakers(
    options: CommonOptions,
    reference: Annotated[str, Argument(metavar="REF", help="Reference speaker turns: RTTM.")],
    hypothesis: Annotated[str, Argument(metavar="HYP", help="Hypotheses, in the same formats.")],
    uem: Annotated[
        str | None,
        Option(
            "--uem", metavar="FILE", help="Regions to score (UEM); default: from the first turn of REF to its last."
        ),
    ] = None,
    collar: Annotated[
        float,
        Option("--collar", metavar="S", parser=seconds, help="Seconds not scored on either side of a turn boundary."),
    ] = 0.0,
    audio: Annotated[
        str | None,
        Option("--audio", metavar="FOLDER_OR_FILE", help="The recordings, to warn of turns after their end."),
    ] = None,
    ignore_overlap: Annotated[
        bool, Option("--ignore-overlap", help="Score only where exactly one speaker of REF speaks.")
    ] = False,
) -> Result:
    """Diarization error rate (DER) of two RTTM files."""
    cfg = options.load()
    from voxstill.evaluation import score_speakers

    scores = score_speakers.of_speakers(
        cfg, reference, hypothesis, uem=uem, collar_s=collar, ignore_overlap=ignore_overlap, audio=audio
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())


@command("meeting", panel="Evaluation", position=5, group="score")
def meeting(
    options: CommonOptions,
    reference: Annotated[str, Argument(metavar="REF", help="STM, SegLST, or JSONL with `session` and `speaker`.")],
    hypothesis: Annotated[str, Argument(metavar="HYP", help="Hypotheses, in the same formats.")],
    form: FormOption = None,
    lang: LanguageOption = None,
    normalizer: NormalizerOption = None,
    collar: Annotated[
        float, Option("--collar", metavar="S", parser=seconds, help="Collar of tcpWER, in seconds.")
    ] = 5.0,
) -> Result:
    """Word error rates of meetings, cpWER and tcpWER, of two files with speakers."""
    cfg = options.load()
    from voxstill.evaluation import score_meetings

    scores = score_meetings.of_meetings(
        cfg, reference, hypothesis, form=form, language=lang, normalizer=normalizer, collar_s=collar
    )
    return ReportResult(figures=scores.to_dict(), text=scores.to_text())
