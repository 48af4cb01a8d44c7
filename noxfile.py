"""Environments of their own: other Pythons, LangChain 0.3, foreign instrumentations, the peers."""

import os
import re
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"  # an interpreter that is missing is skipped, and named
nox.options.envdir = os.environ.get("NOX_ENVDIR", ".nox")
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = [
    "langchain03",
    "openinference",
    "traceloop",
    "langfuse",
    "genai",
    "llamaindex",
    "openai_v2",
    "auto",
    "gevent",
    "servers",
    "redis",
    "other_languages",
    "worker",
    "kafka",
    "haystack",
    "openai_agents",
    "pydantic_ai",
    "agno",
    "ag2",
    "strands",
    "crewai",
    "dspy",
    "smolagents",
    "adk",
    "litellm",
    "judges",
    "local",
    "collector",
    "phoenix",
    "mlflow",
    "backends",
    "report",
    "soak",
    "pythons",
]

ROOT = Path(__file__).parent
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))

# pyenv shows only the active Python; the others are as good.
os.environ["PATH"] = os.pathsep.join(
    [os.environ["PATH"], *sorted(map(str, PYENV.glob("versions/3.1*/bin")))]
)

# Settings of the machine's own telemetry, keys and proxy are not those of the tests.
OF_THE_MACHINE = (
    *("LANGCHAIN_", "LANGFUSE_", "LANGSMITH_", "MLFLOW_", "OPENAI_"),
    *("OTEL_", "PHOENIX_", "RAG_"),
)
for name in [name for name in os.environ if name.startswith(OF_THE_MACHINE)]:
    del os.environ[name]
DIRECT = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
LOOPBACK = ",".join(filter(None, ["127.0.0.1", "localhost", DIRECT]))
os.environ |= {"no_proxy": LOOPBACK, "NO_PROXY": LOOPBACK}
# Each process that a test starts compiles all modules if Python may not store them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TEST_REQUIREMENTS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"][
    "test"
]
TEST_TOOLS = [name for name in TEST_REQUIREMENTS if not re.match(r"lang(chain|graph)\b", name)]

LANGCHAIN_TESTS = [
    "tests/capture/test_*.py",
    "tests/live/test_global_providers.py",
    "tests/live/test_instrument.py",
    "tests/live/test_otlp.py",
    "tests/live/test_shapes.py",
    "tests/tools/test_demo*.py",
]
MANY_CASES = [  # or of texts: the same everywhere
    "tests/capture/test_recordings.py",
    "tests/export/test_attributes.py",
    "tests/test_docs.py",
    "tests/metrics/test_golden.py",
    "tests/test_house.py",
    "tests/reference/test_reference.py",
]
PYTHONS = ["3.10", "3.13", "3.14"]  # the oldest and the newest; other tests run on those between

PEERS = [
    "openinference-instrumentation-langchain",
    "opentelemetry-instrumentation-langchain",
    "haystack-ai",
    "llama-index-core>=0.14",
    "llama-index-llms-openai-like",
]


PARALLEL = ["-n", "auto", "--dist", "loadfile"]
"""A process for each core; the tests of a file share what they cache."""


def existing(*patterns: str) -> list[str]:
    """Return the paths that match ``patterns``, relative to the root."""
    return [str(path.relative_to(ROOT)) for one in patterns for path in sorted(ROOT.glob(one))]


def but(paths: list[str], without: list[str]) -> list[str]:
    """Return ``paths`` but those of ``without``."""
    return [path for path in paths if path not in without]


BESIDE = ["langchain-openai", "opentelemetry-instrumentation-httpx"]  # what the traced app uses


def test_beside(session: nox.Session, *packages: str, **shared: str | list[str]) -> None:
    """Run the end-to-end tests named like the session, with ``packages`` installed.

    ``shared`` has, by the name of a file that sessions share, the names of its tests that are of
    this session. Each file, and each of these names, has a process of its own: an instrumentation
    is switched on once in each.
    """
    session.install("--editable", ".[test]", *packages)
    runs = [[path] for path in existing(f"tests/e2e/test_{session.name}*.py")]
    for file, names in shared.items():
        each = [names] if isinstance(names, str) else names
        runs += [[f"tests/e2e/test_{file}.py", "-k", name] for name in each]
    for run in runs:
        # Frameworks of the corpus, and clients of models, leave sockets to the garbage collector.
        leaves = any(part in run[0] for part in ("corpus", "test_judges", "backends", "mlflow"))
        leaves = leaves or session.name in {"smolagents", "llamaindex"}
        loose = ["-p", "no:unraisableexception"] if leaves else []
        session.run("pytest", *loose, *run, *session.posargs)


@nox.session
def langchain03(session: nox.Session) -> None:
    """Run the LangChain tests with the oldest LangChain and OpenTelemetry we support."""
    old = ["langchain-core<0.4", "langchain<0.4", "langgraph<1"]
    old += [f"opentelemetry-{part}==1.38.*" for part in ("api", "sdk", "exporter-otlp")]
    session.install("--editable", ".", *TEST_TOOLS, *old)
    tests = but(existing(*LANGCHAIN_TESTS), MANY_CASES)
    session.run("pytest", *PARALLEL, *tests, *session.posargs)


@nox.session
def openinference(session: nox.Session) -> None:
    """Score an app that OpenInference traces."""
    test_beside(
        session,
        *BESIDE,
        *("--editable", ".[auto]"),
        "openinference-instrumentation-langchain",
        "openinference-instrumentation-openai",
        beside="openinference",
        watched="langchain-openinference",
        corpus="langchain-openinference",
        auto="beside_openinference",
    )


@nox.session
def traceloop(session: nox.Session) -> None:
    """Score apps of LangChain and of LlamaIndex that OpenLLMetry traces."""
    test_beside(
        session,
        *BESIDE,
        "opentelemetry-instrumentation-langchain",
        "opentelemetry-instrumentation-llamaindex",
        "opentelemetry-instrumentation-openai",
        "llama-index-core>=0.14",
        "llama-index-llms-openai-like",
        beside="traceloop",
        watched="langchain-traceloop",
        corpus=["langchain-traceloop", "llamaindex-traceloop"],
    )


@nox.session
def langfuse(session: nox.Session) -> None:
    """Score an app that Langfuse traces."""
    name = "langchain-langfuse"
    test_beside(session, "langfuse>=5", watched=name, corpus=name)


@nox.session
def genai(session: nox.Session) -> None:
    """Score an app that OpenTelemetry's own LangChain instrumentation traces."""
    test_beside(
        session,
        "langchain-openai",
        "opentelemetry-instrumentation-genai-langchain",
        watched="langchain-genai",
        corpus="langchain-genai",
    )


@nox.session
def llamaindex(session: nox.Session) -> None:
    """Score a LlamaIndex app that OpenInference, or LlamaIndex itself, traces."""
    test_beside(
        session,
        "llama-index-core>=0.14",
        "llama-index-llms-openai-like",
        "llama-index-observability-otel",
        "openinference-instrumentation-llama-index",
        watched=["llamaindex-native", "llamaindex-openinference"],
        corpus=["llamaindex-llamaindex_native", "llamaindex-openinference", "streamed_chats"],
    )


@nox.session
def openai_v2(session: nox.Session) -> None:
    """Score an app that OpenTelemetry's own OpenAI instrumentation traces."""
    test_beside(
        session,
        *BESIDE,
        "opentelemetry-instrumentation-openai-v2==2.4b0",
        "opentelemetry-util-genai==0.4b0",  # 1.x has moved what 2.4b0 imports
        beside="openai_v2",
    )


@nox.session
def auto(session: nox.Session) -> None:
    """Attach by `opentelemetry-instrument`, without a line of code."""
    test_beside(session, "--editable", ".[auto]")


@nox.session
def gevent(session: nox.Session) -> None:
    """Run where threads are greenlets."""
    test_beside(session)


@nox.session
def haystack(session: nox.Session) -> None:
    """Score a Haystack pipeline, traced by Haystack itself and by OpenInference."""
    test_beside(
        session,
        "haystack-ai>=3",
        "opentelemetry-haystack>=2",
        "openinference-instrumentation-haystack",
        watched="haystack-native",
        corpus=["haystack-haystack_native", "haystack-openinference"],
    )


AGENTS = {
    "openai_agents": ["openai-agents", "openinference-instrumentation-openai-agents"],
    "pydantic_ai": ["pydantic-ai-slim[openai]>=2"],
    "agno": ["agno>=3", "openai", "openinference-instrumentation-agno"],
    "ag2": ["ag2[openai,tracing]>=1"],
    "strands": ["strands-agents[openai]>=1"],
    "crewai": [
        "crewai>=1",
        "openinference-instrumentation-crewai",
        "openinference-instrumentation-openai",
    ],
    "dspy": ["dspy>=3", "openinference-instrumentation-dspy"],
    "smolagents": ["smolagents[openai]", "openinference-instrumentation-smolagents"],
    "adk": ["google-adk>=2", "litellm", "mcp"],
    "litellm": ["litellm", "mcp", "openinference-instrumentation-litellm"],
}
"""Frameworks of agents, each with what traces it, beside one another in no environment."""


def _score_agents(name: str, packages: list[str]) -> None:
    @nox.session(name=name)
    def score(session: nox.Session) -> None:
        session.env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network
        test_beside(session, *packages, agents=name)


for framework, requirements in AGENTS.items():
    _score_agents(framework, requirements)


@nox.session
def judges(session: nox.Session) -> None:
    """Ask judges by the clients of their providers, beside an application that uses the same."""
    providers = ("anthropic", "aws", "google-genai", "mistralai", "ollama", "openai")
    test_beside(session, *(f"langchain-{name}" for name in providers))


@nox.session
def local(session: nox.Session) -> None:
    """Judge by small models with random weights, made by the libraries that run real ones."""
    session.env["HF_HUB_OFFLINE"] = "1"
    test_beside(session, "sentence-transformers>=4")


@nox.session
def servers(session: nox.Session) -> None:
    """End servers and workers as they are deployed: uvicorn, gunicorn, Celery, a notebook."""
    packages = ("uvicorn<1", "gunicorn", "celery", "gevent", "ipykernel", "jupyter-client")
    session.install("--editable", ".[test]", *packages)
    session.run("pytest", "tests/faults/test_servers.py", *session.posargs)


@nox.session
def redis(session: nox.Session) -> None:
    """Share one budget among processes in a Redis server that is killed and comes back."""
    test_beside(session)


@nox.session
def other_languages(session: nox.Session) -> None:
    """Score applications in Java and TypeScript, whose packages come from Maven and npm."""
    test_beside(session)


@nox.session
def worker(session: nox.Session) -> None:
    """Run the worker behind a collector, and check the folder deploy/ with Helm and schemas."""
    session.install("--editable", ".[test,kafka]", "kubernetes-validate", "jsonschema")
    files = existing("tests/e2e/test_worker*.py", "tests/e2e/test_deploy.py")
    session.run("pytest", "--timeout=1500", *files, *session.posargs)  # the first may build it


@nox.session
def kafka(session: nox.Session) -> None:
    """Run workers behind a broker, while brokers, workers and backend fail and come back."""
    test_beside(session, "--editable", ".[kafka]")


@nox.session
def collector(session: nox.Session) -> None:
    """Run the folder collector/: our build of the collector, Prometheus, Alertmanager."""
    session.install("--editable", ".[test]")
    tests = (
        "test_collector.py",
        "test_prometheus.py",
        "test_look.py",
    )
    files = [f"tests/e2e/{name}" for name in tests]
    session.run("pytest", "--timeout=1500", *files, *session.posargs)  # the first may build it


@nox.session
def phoenix(session: nox.Session) -> None:
    """Send scored turns to Phoenix, read them back, and look at its page."""
    session.install("--editable", ".[test]", "arize-phoenix==20.26.1")
    # Phoenix brings a plugin for pytest, which warns of its own parts. Its client leaves sockets to
    # the garbage collector.
    without = ("-p", "no:phoenix", "-p", "no:unraisableexception")
    for path in existing("tests/e2e/test_phoenix*.py"):
        session.run("pytest", *without, path, *session.posargs)


@nox.session
def mlflow(session: nox.Session) -> None:
    """Send scores to MLflow as feedback, read them back, and look at its page."""
    test_beside(session, "mlflow==3.17.2", "websockets")


@nox.session
def backends(session: nox.Session) -> None:
    """Record what the client of Langfuse sends for scores."""
    test_beside(session, "langfuse>=5")


@nox.session
def report(session: nox.Session) -> None:
    """Open the page of `rag-eval-otel report` in headless Chromium, and print it."""
    test_beside(session)


@nox.session
def soak(session: nox.Session) -> None:
    """Score mixed traffic with outages for 90 seconds, and count every span and turn."""
    test_beside(session)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """Run the fast tests on another Python."""
    session.install("--editable", ".[test]")
    others = [f"--ignore={path}" for path in MANY_CASES]
    session.run("pytest", *PARALLEL, "-m", "not slow", *others, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against the peers: all benchmarks, or those named on the command line.

    By default, four are left out: one takes half an hour, one needs Java, Maven and Go, and two
    read recordings.
    """
    session.install("--editable", ".[aiohttp,phoenix,tools]", *PEERS)
    left_out = [f"benchmarks/{name}.py" for name in ("ablate", "instrumentations", "soak")]
    scripts = but(existing("benchmarks/[!_]*.py"), left_out)
    for script in session.posargs or scripts:
        session.run("python", script)
