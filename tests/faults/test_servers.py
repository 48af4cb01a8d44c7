"""Servers and workers as they are deployed: how each of them ends, and what arrives."""

import http.client
import json
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from e2e.programs import free_ports
from e2e.redis_server import serving
from live import Row
from processes import PATIENCE, Stage, stage, until

REQUESTS = 40
SCORED = "all turns scored and exported once"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals of POSIX"),
]


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def answers(port: int) -> bool:
    """Return True if a request makes a turn, and False if nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/", headers={"Connection": "close"})
        return connection.getresponse().status == 200
    except (ConnectionError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ask(port: int, times: int) -> None:
    for _ in range(times):
        until(lambda: answers(port))


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def all_scored(found: Stage, made: int, errors: str) -> str:
    """Assert that all turns that were made have arrived with their scores, once; return the figure.

    What the SDK's own thread prints is not ours: it was started before gevent replaced threads.
    """
    errors = re.sub(r"Exception ignored in thread.*Otel.*\n(.*\n)*?KeyError: \d+\n", "", errors)
    assert found.statuses() == {"scored": made}, errors
    assert len(found.spans("child")) == made
    assert len({span.span_id for span in found.spans()}) == made
    assert "Traceback" not in errors, errors
    return f"{made} of {made}"


@pytest.mark.fault(24, expected=SCORED)
@needs("uvicorn")
@pytest.mark.parametrize("workers", [1, 2])
def test_fault_24_uvicorn_and_sigterm(row: Row, workers: int) -> None:
    """Uvicorn raises SIGTERM again with the default handler, after it has stopped."""
    (port,) = free_ports(1)
    command = ("-m", "uvicorn", "served:asgi", "--port", str(port), "--workers", str(workers))
    with stage(latency=0.1) as found, found.running(*command) as process:
        ask(port, REQUESTS)
        status, errors = end(process)
        row.measured(f"scored with uvicorn, {workers} workers", all_scored(found, REQUESTS, errors))
    if workers == 1:
        assert status == -signal.SIGTERM


WORKERS = {
    "sync": (),
    "gthread": ("--threads", "4"),
    "gevent": (),
    "uvicorn.workers.UvicornWorker": (),
}


CONFIG = """
def post_worker_init(worker): open(f"{__file__}.{worker.pid}", "w").close()
"""


def gunicorn(port: int, *options: str, app: str = "wsgi") -> tuple[str, ...]:
    serve = "import sys; from gunicorn.app.wsgiapp import run; sys.exit(run())"
    bind = ("--bind", f"127.0.0.1:{port}", "--workers", "2", "--graceful-timeout", "100")
    return ("-c", serve, f"served:{app}", *bind, "--timeout", "100", *options)


@pytest.mark.fault(22, expected=SCORED)
@needs("gunicorn")
@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["alone", "preload"])
@pytest.mark.parametrize("worker", WORKERS)
def test_fault_22_gunicorn_and_sigterm(
    row: Row, worker: str, preload: tuple[str, ...], tmp_path: Path
) -> None:
    """With ``--preload``, the workers are forked while the first turn is scored.

    A worker of gunicorn loses a SIGTERM that comes before it has handlers of its own.
    """
    pytest.importorskip(worker.rpartition(".")[0] or "gunicorn")
    if worker == "gevent":
        pytest.importorskip("gevent")
    (port,), app = free_ports(1), "asgi" if "uvicorn" in worker else "wsgi"
    (config := tmp_path / "config.py").write_text(CONFIG)
    options = ("--worker-class", worker, *WORKERS[worker], "--config", str(config), *preload)
    early = {"SERVED_TURNS_AT_IMPORT": "yes"} if preload else {}
    with (
        stage(latency=0.1) as found,
        found.running(*gunicorn(port, *options, app=app), **early) as process,
    ):
        ask(port, REQUESTS)
        until(lambda: len([*tmp_path.glob("config.py.*")]) == 2)
        status, errors = end(process)
        row.measured(
            f"scored with gunicorn {worker} {' '.join(preload)}".rstrip(),
            all_scored(found, REQUESTS + len(preload), errors),
        )
    assert status == 0


@pytest.mark.fault(22, expected=SCORED)
@needs("gunicorn")
def test_fault_22_gunicorn_replaces_its_workers(row: Row) -> None:
    """HUP starts new workers and ends the old ones; `max_requests` ends a worker after a few."""
    (port,) = free_ports(1)
    with (
        stage(latency=0.1) as found,
        found.running(*gunicorn(port, "--max-requests", "15")) as process,
    ):
        ask(port, REQUESTS)
        process.send_signal(signal.SIGHUP)
        ask(port, REQUESTS)
        status, errors = end(process)
        row.measured(
            "scored with gunicorn, HUP, max_requests", all_scored(found, 2 * REQUESTS, errors)
        )
        assert len({span.attributes["process"] for span in found.spans()}) > 2
    assert status == 0


@pytest.mark.fault(21, expected=SCORED)
@needs("celery")
@pytest.mark.parametrize(
    "options", [(), ("--max-tasks-per-child", "1")], ids=["warm shutdown", "one task"]
)
def test_fault_21_celery_prefork(row: Row, options: tuple[str, ...], tmp_path: Path) -> None:
    """Children of the pool end by os._exit: at a warm shutdown, or after each task.

    The broker is real, because Celery works in another way without: a thread starts the children,
    and the kernel kills them at the end of this thread.
    """
    done, made = tmp_path / "done", 20
    done.touch()
    command = ("-m", "celery", "-A", "served_tasks", "worker", "-P", "prefork", "-c", "2")
    quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat")
    variables = {"SERVED_DONE": str(done), "SERVED_TASKS": str(made)}
    with (
        serving(tmp_path) as broker,
        stage(latency=0.1) as found,
        found.running(
            *command, *quiet, *options, SERVED_BROKER=broker.address, **variables
        ) as process,
    ):
        until(lambda: done.read_text().count("done") == made)
        status, errors = end(process)
        row.measured(
            f"scored with Celery {' '.join(options)}".rstrip(), all_scored(found, made, errors)
        )
    assert status == 0


SPAWNED = """
import multiprocessing
from served import turn
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    children = [context.Process(target=turn) for _ in range(4)]
    for child in children: child.start()
    for child in children: child.join()
    assert not any(child.exitcode for child in children)
"""


@pytest.mark.fault(21, expected=SCORED)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fault_21_children_of_multiprocessing(row: Row, method: str, tmp_path: Path) -> None:
    """A child with one turn ends right after it."""
    script = tmp_path / "app.py"
    script.write_text(SPAWNED.format(method=method))
    with stage(latency=0.1) as found, found.running(str(script)) as process:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        row.measured(f"scored with {method}", all_scored(found, 4, errors))


@pytest.mark.fault("gevent", expected=SCORED)
@needs("gevent")
def test_fault_gevent_and_sigterm(row: Row) -> None:
    """With threads that are greenlets, the handler cannot wait; the process ends all the same."""
    script = """
from gevent import monkey; monkey.patch_all()
import os, signal, time
from served import turn
for _ in range(20): turn()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""
    with stage(latency=0.1) as found:
        status, _, errors = found.run(script)
        assert status == -signal.SIGTERM, errors
        row.measured("scored after SIGTERM", all_scored(found, 20, errors))


@pytest.mark.fault(20, expected=SCORED)
@needs("ipykernel", "jupyter_client")
def test_fault_20_a_kernel_of_a_notebook_is_shut_down(row: Row) -> None:
    """The turns of a cell are scored when the kernel shuts down."""
    from jupyter_client.manager import KernelManager  # noqa: PLC0415

    with stage(latency=0.1) as found:
        kernel = KernelManager()
        kernel.kernel_spec.argv[0] = sys.executable
        kernel.shutdown_wait_time = PATIENCE
        kernel.start_kernel(env=found.environment(), stderr=subprocess.DEVNULL)
        client = kernel.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE)
            cell = "from served import turn\nfor _ in range(20): turn()"
            reply = client.execute_interactive(cell, timeout=PATIENCE)
            assert reply["content"]["status"] == "ok", json.dumps(reply["content"])
        finally:
            client.stop_channels()
            kernel.shutdown_kernel()
        row.measured("scored in a notebook", all_scored(found, 20, ""))
