"""`diagnose`: everything the doctor looks at, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from rag_eval_otel.config import Config, Signal
from rag_eval_otel.doctor.causes import Finding, found
from rag_eval_otel.doctor.findings import of_answers, of_config, of_replies, of_variables
from rag_eval_otel.doctor.installed import versions
from rag_eval_otel.doctor.launch import Ran
from rag_eval_otel.doctor.notes import ExportNote, PipelineNote
from rag_eval_otel.doctor.program import of_run, without_explained
from rag_eval_otel.doctor.reach import PARTS, Part, Reached, reach
from rag_eval_otel.doctor.targets import Target, otlp_targets, target_of
from rag_eval_otel.doctor.totals import totals_of
from rag_eval_otel.errors import ConfigError

Status = Literal[0, 1, 3]
_LEVELS: Final = ("problem", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is there, who answers, how the program went, and what is wrong, the worst first."""

    versions: Mapping[str, str]
    reached: Reached
    ran: Ran | None = None
    findings: Sequence[Finding] = field(default=())

    @property
    def status(self) -> Status:
        """0: no problem; 1: problems; 3: the program itself failed."""
        if self.ran is not None and self.ran.failed:
            return 3
        return 1 if any(one.level == "problem" for one in self.findings) else 0


def diagnose(environ: Mapping[str, str], *, ran: Ran | None = None, timeout: float) -> Diagnosis:
    """Look at everything; who is asked has ``timeout`` seconds to answer."""
    findings = [*of_variables(environ)]
    config: Config | None = None
    try:
        config = Config.from_env(environ)
    except ConfigError as error:
        findings.append(found("config-invalid", str(error)))
    targets: Sequence[Target] = otlp_targets(environ)
    parts: Sequence[Part] = PARTS
    if ran is not None:
        findings += of_run(ran)
        targets = _worth_asking(targets, ran, environ)
        config, parts = _in_force(config, ran)
    if config is not None:
        findings += _of_judge(config, parts)
    reached = reach(config, targets, parts=parts, timeout=timeout)
    findings += [*of_replies(reached.replies), *of_answers(reached.answers)]
    return Diagnosis(
        versions=_versions(ran),
        reached=reached,
        ran=ran,
        findings=sorted(without_explained(findings), key=lambda one: _LEVELS.index(one.level)),
    )


def _of_judge(config: Config, parts: Sequence[Part]) -> Iterator[Finding]:
    yield from of_config(config)
    if "judge" not in parts:
        yield found("judge-untried", "the judge or its key is set in the program's code")


def _versions(ran: Ran | None) -> Mapping[str, str]:
    """Return what is installed where the program ran, as far as that is known."""
    noted = [one.versions for one in ran.processes if one.versions] if ran else []
    return noted[0] if noted else versions()


# --- whom to ask after a run ----------------------------------------------------------------------


def _in_force(config: Config | None, ran: Ran) -> tuple[Config | None, Sequence[Part]]:
    """Return the program's own options, and who of judge and embedder can be asked from here."""
    notes = [note for note in totals_of(ran.processes).pipelines if note.by == "program"]
    if config is None or not notes:
        return config, PARTS
    note = notes[-1]
    parts: tuple[Part, ...] = tuple(part for part in PARTS if _can_be_asked(note, part))
    return replace(
        config,
        judge=note.judge if "judge" in parts else config.judge,
        embedder=note.embedder if "embedder" in parts else config.embedder,
        judge_base_url=note.judge_base_url,
    ), parts


def _can_be_asked(note: PipelineNote, part: Part) -> bool:
    model = note.judge if part == "judge" else note.embedder
    if model in {"lexical", "hashing"}:
        return True
    return model.startswith("openai/") and note.judge_key != "code"


def _worth_asking(
    targets: Sequence[Target], ran: Ran, environ: Mapping[str, str]
) -> Sequence[Target]:
    """Return the endpoints that failed the program, and those of variables it has not used."""
    exports = totals_of(ran.processes).exports
    used = {one.signal for one in exports}
    unused = [one for one in targets if one.source and one.signal not in used]
    return [*(_target(one, environ) for one in exports if one.failed), *unused]


def _target(export: ExportNote, environ: Mapping[str, str]) -> Target:
    signal: Signal = next(one for one in get_args(Signal) if one == export.signal)
    known = target_of(signal, "grpc" if export.protocol == "grpc" else "http", environ)
    if export.endpoint in known.endpoint:
        return replace(known, source=known.source or "the program's exporter")
    is_plain = known.is_plain or not known.source
    return replace(
        known, endpoint=export.endpoint, source="the program's exporter", is_plain=is_plain
    )
