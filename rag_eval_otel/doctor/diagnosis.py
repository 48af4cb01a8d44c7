"""`diagnose`: everything the doctor looks at, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from rag_eval_otel.config import Config
from rag_eval_otel.doctor.causes import Finding, found
from rag_eval_otel.doctor.findings import of_answers, of_config, of_replies, of_variables
from rag_eval_otel.doctor.launch import Ran
from rag_eval_otel.doctor.program import of_run, without_explained
from rag_eval_otel.doctor.reach import PARTS, Part, Reached, reach
from rag_eval_otel.doctor.targets import Target, otlp_targets
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.notes import Note
from rag_eval_otel.providers import parts_of
from rag_eval_otel.runtime.installed import versions

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
        targets = _worth_asking(targets, ran)
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
    return ran.notes[0].versions if ran and ran.notes else versions()


# --- whom to ask after a run ----------------------------------------------------------------------


def _in_force(config: Config | None, ran: Ran) -> tuple[Config | None, Sequence[Part]]:
    """Return the program's own options, and who of judge and embedder can be asked from here."""
    if config is None or not ran.notes:
        return config, PARTS
    note = ran.notes[-1]
    parts: tuple[Part, ...] = tuple(part for part in PARTS if _can_be_asked(note, part))
    return replace(
        config,
        judge=note.judge if "judge" in parts else config.judge,
        embedder=note.embedder if "embedder" in parts else config.embedder,
        judge_base_url=note.judge_base_url,
    ), parts


def _can_be_asked(note: Note, part: Part) -> bool:
    model = note.judge if part == "judge" else note.embedder
    if model in {"lexical", "hashing"}:
        return True
    return parts_of(model) is not None and note.judge_key != "code"


def _worth_asking(targets: Sequence[Target], ran: Ran) -> Sequence[Target]:
    """Return the endpoints that variables name; where exports failed, the default ones, too."""
    if any("export-failing" in note.logged for note in ran.notes):
        return targets
    return [one for one in targets if one.source]
