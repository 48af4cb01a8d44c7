"""Agents that search the handbook, in ten frameworks, with a scripted model.

The model calls the search tool, then answers from its result; by chat completions, streamed or not,
or by the responses API. Each framework has an environment of its own: ``nox -s NAME``.
"""

import asyncio
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from opentelemetry.trace import set_tracer_provider

from apps import company
from conversations import TOPICS, Messages, reply_to
from e2e.watched import QUESTIONS, TRUTHS, Watched, assert_conversed, instrumented, watched
from openai_server import HttpReply, LoopbackServer, chat_reply
from rag_eval_otel import record_question, record_retrieval

Found: TypeAlias = Callable[[str], object]
Ask: TypeAlias = Callable[..., Any]  # of a question, and perhaps the messages before it

SEARCH, FINAL, MODEL = "search_docs", "final_answer", "gpt-4o-mini"
INSTRUCTIONS = "Answer from the handbook."
ASKED = QUESTIONS[:2]
NONE: Messages = []
needed = pytest.importorskip


def in_roles(history: Messages, question: str) -> list[dict[str, str]]:
    messages = [*history, ("user", question)]
    return [{"role": role, "content": text} for role, text in messages]


def pages(question: str) -> list[str]:
    return list(TRUTHS[question].contexts)


def joined(question: str) -> str:
    return "\n\n".join(pages(question))


def records(question: str) -> list[dict[str, Any]]:
    return [{"text": text, "score": 0.5, "source": "handbook.md"} for text in pages(question)]


def in_json(question: str) -> str:
    return json.dumps(records(question))


def results(question: str) -> dict[str, Any]:
    """Return the pages as ADK expects them."""
    return {"results": pages(question)}


def blocks(question: str) -> dict[str, Any]:
    """Return the pages as Strands expects them."""
    return {"status": "success", "content": [{"text": text} for text in pages(question)]}


def numbered(question: str) -> str:
    """Return the pages as the retrieval tool of smolagents' documentation."""
    found = enumerate(pages(question))
    texts = "".join(f"\n\n===== Document {n} =====\n{text}" for n, text in found)
    return f"\nRetrieved documents:\n{texts}"


RETURNS = (pages, joined, records, in_json)
"""What tools return; a framework may not take all of it."""


def tool(found: Found) -> Callable[[str], Any]:
    """Return a search tool, which returns what ``found`` makes of its query."""

    def search_docs(query: str) -> Any:
        """Search the handbook."""
        return found(query)

    return search_docs


def adk(_: Watched, url: str, found: Found) -> Ask:
    types = needed("google.genai.types")
    lite = needed("google.adk.models.lite_llm")
    model = lite.LiteLlm(model=f"openai/{MODEL}", api_base=url, api_key="app")

    agent = needed("google.adk.agents").LlmAgent(
        name="helper", instruction=INSTRUCTIONS, tools=[tool(found)], model=model
    )
    runner = needed("google.adk.runners").InMemoryRunner(agent=agent, app_name="app")
    sessions: dict[str, Any] = {}

    async def ask(question: str, history: Messages = NONE) -> str:
        first = history[0][1] if history else question
        if first not in sessions:
            create = runner.session_service.create_session
            sessions[first] = await create(app_name="app", user_id="u")
        session = sessions[first]
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        said = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            if event.is_final_response() and event.content:
                said = event.content.parts[0].text
        return said

    return ask


def ag2(watch: Watched, url: str, found: Found, **options: Any) -> Ask:
    telemetry = needed("ag2.middleware.builtin.telemetry")
    middleware = telemetry.TelemetryMiddleware(tracer_provider=watch.provider, **options)

    def search_docs(query: str) -> str:
        """Search the handbook."""
        return str(found(query))

    async def ask(question: str) -> object:
        async with needed("httpx2").AsyncClient() as client:
            config = needed("ag2.config").OpenAIConfig(
                MODEL, api_key="app", base_url=url, http_client=client
            )
            agent = needed("ag2").Agent(
                "helper", INSTRUCTIONS, config=config, tools=[search_docs], middleware=[middleware]
            )
            return (await agent.ask(question)).body

    return ask


def agno(_: Watched, url: str, found: Found, *, is_streamed: bool = False) -> Ask:
    model = needed("agno.models.openai").OpenAIChat(id=MODEL, base_url=url, api_key="app")
    agent = needed("agno.agent").Agent(
        name="Helper", model=model, telemetry=False, tools=[tool(found)]
    )

    def ask(question: str, history: Messages = NONE) -> Any:
        message = needed("agno.models.message").Message
        asked = [message(**one) for one in in_roles(history, question)] if history else question
        if not is_streamed:
            return agent.run(asked).content
        pieces = agent.run(asked, stream=True)
        return "".join(str(getattr(piece, "content", None) or "") for piece in pieces)

    return ask


BEFORE = "Answer this from the handbook: "


def crewai(_: Watched, url: str, found: Found, *, kind: str = "inputs") -> Ask:
    crew = needed("crewai")
    agent = crew.Agent(
        role="Helper",
        goal="Answer questions",
        backstory="Knows the handbook.",
        tools=[needed("crewai.tools").tool(SEARCH)(tool(found))],
        llm=crew.LLM(model=MODEL, base_url=url, api_key="app"),
    )

    def kickoff(description: str, **options: Any) -> Any:
        task = crew.Task(description=description, expected_output="A short answer", agent=agent)
        return crew.Crew(agents=[agent], tasks=[task]).kickoff(**options)

    def ask(question: str) -> object:
        if kind == "inputs":
            return kickoff("Answer this question: {question}", inputs={"question": question}).raw
        return (kickoff(BEFORE + question) if kind == "task" else agent.kickoff(question)).raw

    return ask


def dspy(_: Watched, url: str, found: Found, *, kind: str) -> Ask:
    """Return an agent, or a module that searches by a function, with its contexts as arguments."""
    package = needed("dspy")
    model = package.LM(f"openai/{MODEL}", api_base=url, api_key="app", cache=False)

    class Rag(package.Module):  # type: ignore[misc,name-defined]
        """The module of DSPy's tutorial."""

        def __init__(self) -> None:
            super().__init__()
            signature = "context: list[str], question -> response"
            self.respond = getattr(package, kind)(signature)

        def forward(self, question: str) -> Any:
            return self.respond(context=found(question), question=question)

    is_agent = kind == "ReAct"
    made = package.ReAct("question -> answer", tools=[tool(found)]) if is_agent else Rag()

    def ask(question: str) -> object:
        with package.context(lm=model):
            said = made(question=question)
        return said.answer if is_agent else said.response

    return ask


def in_fields(body: Mapping[str, Any]) -> str:
    """Return a reply with the fields of a signature of DSPy."""
    system, *_, last = (str(message["content"]) for message in body["messages"])
    wanted = re.findall(r"`(\w+)` \(", system.partition("Your output fields are:")[2])
    asked = _question_in(last)
    is_found = "observation_0" in last
    fields = {
        "reasoning": "The handbook says so.",
        "answer": company.answer(asked, last),
        "response": company.answer(asked, last),
        "next_thought": "Look it up.",
        "next_tool_name": "finish" if is_found else SEARCH,
        "next_tool_args": "{}" if is_found else f'{{"query": "{asked}"}}',
    }
    told = "".join(f"[[ ## {name} ## ]]\n{fields[name]}\n\n" for name in dict.fromkeys(wanted))
    return f"{told}[[ ## completed ## ]]"


def litellm(watch: Watched, url: str, found: Found, *, is_recorded: bool = False) -> Ask:
    """Return a loop over tools, or a search that is no span and recorded by the application."""
    tracer = watch.provider.get_tracer("app")
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    function = {"name": SEARCH, "description": "Search the handbook.", "parameters": parameters}

    def complete(*messages: Any, **options: Any) -> Any:
        model = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "app"}
        completion = needed("litellm").completion
        return completion(messages=[*messages], **model, **options).choices[0].message

    def recorded(question: str, _: Messages) -> Any:
        record_question(question)
        record_retrieval(question, pages(question))
        return complete({"role": "user", "content": f"{found(question)}\n\n{question}"})

    def loop(question: str, history: Messages) -> Any:
        asked = in_roles(history, question)
        wanted = complete(*asked, tools=[{"type": "function", "function": function}])
        (call,) = wanted.tool_calls
        content = found(json.loads(call.function.arguments)["query"])
        shown = {"role": "tool", "tool_call_id": call.id, "content": content}
        tools = [{"type": "function", "function": function}]
        return complete(*asked, wanted.model_dump(), shown, tools=tools)

    def ask(question: str, history: Messages = NONE) -> str:
        with tracer.start_as_current_span("answer"):
            return str((recorded if is_recorded else loop)(question, history).content)

    return ask


def openai_agents(
    _: Watched, url: str, found: Found, *, api: str = "ChatCompletions", is_streamed: bool = False
) -> Ask:
    agents = needed("agents")

    async def ask(question: str, history: Messages = NONE) -> object:
        asked = in_roles(history, question) if history else question
        async with needed("openai").AsyncOpenAI(base_url=url, api_key="app") as client:
            agent = agents.Agent(
                name="Helper",
                instructions=INSTRUCTIONS,
                tools=[agents.function_tool(tool(found))],
                model=getattr(agents, f"OpenAI{api}Model")(model=MODEL, openai_client=client),
            )
            if not is_streamed:
                return (await agents.Runner.run(agent, asked)).final_output
            run = agents.Runner.run_streamed(agent, asked)
            async for _ in run.stream_events():
                pass
            return run.final_output

    return ask


def pydantic_ai(
    watch: Watched,
    url: str,
    found: Found,
    *,
    api: str = "Chat",
    is_streamed: bool = False,
    **options: Any,
) -> Ask:
    package, models = needed("pydantic_ai"), needed("pydantic_ai.models.openai")
    providers = needed("pydantic_ai.providers.openai")

    messages = needed("pydantic_ai.messages")
    of_role = {
        "user": lambda text: messages.ModelRequest(parts=[messages.UserPromptPart(text)]),
        "assistant": lambda text: messages.ModelResponse(parts=[messages.TextPart(text)]),
    }

    async def ask(question: str, history: Messages = NONE) -> object:
        before = [of_role[role](text) for role, text in history]
        async with needed("openai").AsyncOpenAI(base_url=url, api_key="app") as client:
            provider = providers.OpenAIProvider(openai_client=client)
            model = getattr(models, f"OpenAI{api}Model")(MODEL, provider=provider)
            agent = package.Agent(model, tools=[tool(found)], instructions=INSTRUCTIONS)
            agent.instrument = package.InstrumentationSettings(
                tracer_provider=watch.provider, **options
            )
            if not is_streamed:
                return (await agent.run(question, message_history=before)).output
            async with agent.run_stream(question, message_history=before) as run:
                return await run.get_output()

    return ask


def smolagents(_: Watched, url: str, found: Found, *, kind: str) -> Ask:
    package = needed("smolagents")

    class Search(package.Tool):  # type: ignore[misc,name-defined]
        """Search the handbook."""

        name = SEARCH
        description = "Search the handbook."
        inputs = {"query": {"type": "string", "description": "What to search for."}}  # noqa: RUF012
        output_type = "any"

        def forward(self, query: str) -> Any:
            return found(query)

    model = package.OpenAIModel(model_id=MODEL, api_base=url, api_key="app")
    agents: dict[str, Any] = {}

    def ask(question: str, history: Messages = NONE) -> object:
        first = history[0][1] if history else question
        make = partial(getattr(package, kind), tools=[Search()], model=model, verbosity_level=0)
        agent = agents[first] = agents.get(first) or make()
        return agent.run(question, reset=not history)

    return ask


def in_code(body: Mapping[str, Any]) -> str:
    """Return the model's reply as lines of code."""
    said = in_calls({**body, "tools": [{"name": SEARCH}]})
    if isinstance(said, str):
        return f"Thought: done.\n<code>\nfinal_answer({json.dumps(said)})\n</code>"
    return f'Thought: search.\n<code>\nprint({said[0]}(query="{said[1]["query"]}"))\n</code>'


def strands(_: Watched, url: str, found: Found) -> Ask:
    package, models = needed("strands"), needed("strands.models.openai")
    vars(needed("strands.telemetry.tracer"))["_tracer_instance"] = None  # it keeps the first
    client = {"base_url": url, "api_key": "app"}

    def ask(question: str, history: Messages = NONE) -> object:
        return package.Agent(
            model=models.OpenAIModel(client_args=client, model_id=MODEL),
            tools=[package.tool(tool(found))],
            system_prompt=INSTRUCTIONS,
            messages=[{"role": role, "content": [{"text": text}]} for role, text in history],
            callback_handler=None,
        )(question)

    return ask


def in_calls(body: Mapping[str, Any]) -> Any:
    """Return the model's reply: a tool call as name and arguments, or a text."""
    asked, found = _asked_and_found(body)
    tools = {tool.get("function", tool)["name"] for tool in body.get("tools") or ()}
    if not found and tools:
        return next(name for name in tools if SEARCH in name), {"query": asked}
    answer = company.answer(asked, "\n".join(found))
    return (FINAL, {"answer": answer}) if FINAL in tools else answer


@dataclass(frozen=True)
class Way:
    """A way to use a framework, and what its turns are."""

    program: Callable[..., Ask]
    found: tuple[Found, ...] = RETURNS
    variables: Mapping[str, str] = field(default_factory=dict)
    reply: Callable[[Mapping[str, Any]], Any] = in_calls
    before: str = ""  # the question
    end: str = ""  # of the answer


CREWAI = {"CREWAI_DISABLE_TELEMETRY": "true"}
ADK = {  # records content on spans
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
}
LATEST = "gen_ai_latest_experimental"
STRANDS = {"": "", "-latest": LATEST, "-attributes": f"{LATEST},gen_ai_span_attributes_only"}
SMOL = (pages, joined, in_json, numbered)

WAYS = {
    "adk": Way(adk, (*RETURNS, results), ADK),
    "ag2": Way(ag2),
    "agno": Way(agno),
    "agno-streamed": Way(partial(agno, is_streamed=True), (joined,)),
    "crewai": Way(crewai, RETURNS, CREWAI),
    # The question is the description of the task, not the prompt that CrewAI builds from it.
    "crewai-task": Way(partial(crewai, kind="task"), (joined,), CREWAI, before=BEFORE),
    "crewai-agent": Way(partial(crewai, kind="agent"), (joined,), CREWAI),
    **{
        f"dspy-{kind}": Way(partial(dspy, kind=kind), (pages,), reply=in_fields)
        for kind in ("ChainOfThought", "Predict", "ReAct")
    },
    "litellm": Way(litellm, (joined,)),
    "litellm-recorded": Way(partial(litellm, is_recorded=True), (joined,)),
    "openai_agents": Way(openai_agents),
    "openai_agents-responses": Way(partial(openai_agents, api="Responses")),
    "openai_agents-streamed": Way(partial(openai_agents, is_streamed=True), (pages,)),
    "pydantic_ai": Way(pydantic_ai),
    "pydantic_ai-responses": Way(partial(pydantic_ai, api="Responses")),
    "pydantic_ai-streamed": Way(partial(pydantic_ai, is_streamed=True), (pages,)),
    **{  # each has other names of attributes and spans
        f"pydantic_ai-version_{number}": Way(partial(pydantic_ai, version=number), (records,))
        for number in (2, 3, 4, 5, 6)
    },
    "smolagents-tools": Way(partial(smolagents, kind="ToolCallingAgent"), SMOL),
    "smolagents-code": Way(partial(smolagents, kind="CodeAgent"), SMOL, reply=in_code),
    **{
        f"strands{name}": Way(
            strands, (*RETURNS, blocks), {"OTEL_SEMCONV_STABILITY_OPT_IN": opt_in}, end="\n"
        )
        for name, opt_in in STRANDS.items()
    },
}
REFUSED = {
    "adk": (Way(adk), "no_answer"),  # its spans have no texts without the settings
    "ag2": (Way(partial(ag2, max_tool_result_chars=60), (joined,)), "truncated"),
    "pydantic_ai": (Way(partial(pydantic_ai, include_content=False)), "no_answer"),
}
"""A way by the name of its framework, and the reason to skip its turn."""

INSTRUMENTORS = {
    "agno": ["agno.AgnoInstrumentor"],
    "crewai": ["crewai.CrewAIInstrumentor", "openai.OpenAIInstrumentor"],
    "dspy": ["dspy.DSPyInstrumentor"],
    "litellm": ["litellm.LiteLLMInstrumentor"],
    "openai_agents": ["openai_agents.OpenAIAgentsInstrumentor"],
    "smolagents": ["smolagents.SmolagentsInstrumentor"],
}
"""The instrumentations of OpenInference; the other frameworks trace themselves."""
WITH_GLOBAL_PROVIDER = {"adk", "strands"}
IGNORED = {  # warnings of the frameworks
    **dict.fromkeys(("adk", "crewai", "dspy", "litellm"), "ignore"),
    "pydantic_ai": "ignore:Instrumentation format versions",
}


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A provider with our processor, which the framework of the test's name is traced with."""
    names = [name.partition(".") for name in INSTRUMENTORS.get(request.param, ())]
    made = [getattr(needed(f"openinference.instrumentation.{m}"), c)() for m, _, c in names]
    with (
        watched() as found,
        instrumented(*made, tracer_provider=found.provider, skip_dep_check=True),
    ):
        if request.param in WITH_GLOBAL_PROVIDER:
            set_tracer_provider(found.provider)
        yield found


def case(name: str, *given: Any, id: str) -> Any:  # noqa: A002  # as pytest names it
    framework = name.partition("-")[0]
    marks = [pytest.mark.filterwarnings(IGNORED[framework])] if framework in IGNORED else []
    return pytest.param(framework, *given, marks=marks, id=id)


EACH_WAY = [
    case(name, way, found, id=f"{name}-{found.__name__}")
    for name, way in WAYS.items()
    for found in way.found
]
EACH_REFUSED = [case(name, *refused, id=name) for name, refused in REFUSED.items()]


@pytest.mark.parametrize(("watch", "way", "found"), EACH_WAY, indirect=["watch"], scope="module")
def test_each_turn(watch: Watched, way: Way, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its tool returns: question, documents and answer are those of the turn."""
    for name, value in way.variables.items():
        monkeypatch.setenv(name, value)

    def use(ask: Ask) -> None:
        answers = asyncio.run(all_of(ask)) if inspect.iscoroutinefunction(ask) else map(ask, ASKED)
        for question, answer in zip(ASKED, answers, strict=True):
            assert TRUTHS[question].answer in str(answer)

    with model(way.reply) as url:
        run = watch.run(lambda: use(way.program(watch, url, found)))
    truths = [TRUTHS[question] for question in ASKED]
    assert run.truths == Counter(
        replace(truth, question=way.before + truth.question, answer=truth.answer + way.end)
        for truth in truths
    )
    assert run.outcomes == {("scored", None): len(truths)}


async def all_of(ask: Ask) -> list[object]:
    return [await ask(question) for question in ASKED]


CONVERSING = [
    *("adk", "agno", "agno-streamed", "litellm"),
    *("openai_agents", "openai_agents-responses", "openai_agents-streamed"),
    *("pydantic_ai", "pydantic_ai-responses", "pydantic_ai-streamed"),
    *("smolagents-tools", "strands", "strands-latest", "strands-attributes"),
]
"""Ways that can be given the messages before a question."""
EACH_CONVERSING = [case(name, WAYS[name], id=name) for name in CONVERSING]


def in_conversation(body: Mapping[str, Any]) -> Any:
    """Return the model's reply: a call of the search tool, then the answer."""
    messages = body.get("messages") or body["input"]
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    known = [question for asked in TOPICS.values() for question in asked]
    users = [n for n, one in enumerate(messages) if one.get("role") == "user"]
    asked = max(n for n in users if any(question in _text(messages[n]) for question in known))
    text = _text(messages[asked])
    if not any(map(_is_result, messages[asked + 1 :])):
        return SEARCH, {"query": max(known, key=text.rfind)}
    tools = {tool.get("function", tool)["name"] for tool in body.get("tools") or ()}
    return (FINAL, {"answer": reply_to(text)}) if FINAL in tools else reply_to(text)


@pytest.mark.parametrize(("watch", "way"), EACH_CONVERSING, indirect=["watch"], scope="module")
def test_conversations(watch: Watched, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of two conversations has the messages before it, and none of the other's."""
    for name, value in way.variables.items():
        monkeypatch.setenv(name, value)
    with model(in_conversation) as url:
        talk = way.program(watch, url, lambda _: "This is the page that was found.")
        is_async = inspect.iscoroutinefunction(talk)

        def ask(question: str, history: Messages) -> str:
            said = talk(question, history)
            return str(asyncio.run(said) if is_async else said)

        # smolagents shows the model texts of its own in place of earlier messages.
        assert_conversed(watch, ask, has_history=way is not WAYS["smolagents-tools"])


@pytest.mark.parametrize(
    ("watch", "way", "reason"), EACH_REFUSED, indirect=["watch"], scope="module"
)
def test_turns_without_their_texts_are_refused(watch: Watched, way: Way, reason: str) -> None:
    """They are hidden, as some frameworks do by default, or cut."""
    with model(way.reply) as url:
        ask = way.program(watch, url, way.found[0])
        run = watch.run(lambda: asyncio.run(ask(ASKED[0])))
    assert not run.truths
    assert run.outcomes == {("skipped", reason): 1}


@contextmanager
def model(reply: Callable[[Mapping[str, Any]], Any]) -> Iterator[str]:
    """Serve a model that replies with a tool call, as name and arguments, or with a text."""

    def answer(path: str, _: Mapping[str, str], raw: bytes) -> HttpReply:
        body = json.loads(raw)
        what = reply(body)
        if path.endswith("/responses"):
            return HttpReply(body=_response(body, what))
        return chat_reply(body, what) if isinstance(what, str) else chat_reply(body, "", [what])

    with LoopbackServer(answer) as server:
        yield f"{server.url}/v1"


def _question_in(text: str) -> str:
    """Return the question in ``text``, without the text that the framework adds."""
    return next(question for question in TRUTHS if question in text)


def _asked_and_found(body: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the question, and the tool results after it or the text around it."""
    messages = body.get("messages") or body["input"]
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    asked = [n for n, one in enumerate(messages) if _is_question(one)][-1]
    found = [_text(one) for one in messages[asked + 1 :] if _is_result(one)]
    text = _text(messages[asked])
    return _question_in(text), found if body.get("tools") else [text, *found]


def _is_question(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user" and any(q in _text(message) for q in TRUTHS)


def _is_result(message: Mapping[str, Any]) -> bool:
    text = _text(message)
    is_result = message.get("role") == "tool" or message.get("type") == "function_call_output"
    return is_result or text.startswith("Observation:")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content", message.get("output")) or ""
    if isinstance(content, str):
        return content.replace("\\n", "\n")  # the content may be JSON
    return "".join(str(part.get("text") or "") for part in content)


def _response(body: Mapping[str, Any], what: Any) -> dict[str, Any]:
    item: dict[str, Any] = {"id": "item_1", "status": "completed"}
    if isinstance(what, str):
        part = {"type": "output_text", "text": what, "annotations": [], "logprobs": []}
        item |= {"type": "message", "role": "assistant", "content": [part]}
    else:
        name, arguments = json.loads(json.dumps(what))
        called = {"call_id": "call_1", "name": name, "arguments": json.dumps(arguments)}
        item |= {"type": "function_call", **called}
    details = {"input_tokens_details": {"cached_tokens": 0}}
    details |= {"output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10, **details},
    }
