"""An alarm of the drift monitor, for tests of its telemetry."""

from rag_eval_otel.drift.records import Alarm, Drift, Stream


def drifted(service: str = "shop") -> Drift:
    """Return an alarm on a metric whose mean has fallen by 0.3."""
    alarm = Alarm(
        index=2100,
        onset=2040,
        n=60,
        direction="down",
        view="level",
        before=0.9,
        after=0.6,
        interval=(-0.4, -0.2),
        log10_evidence=5.1,
        every=100_000,
    )
    return Drift(stream=Stream(service=service, name="faithfulness"), alarm=alarm)
