"""Score one question with its contexts and answer, without tracing."""

from rag_eval_otel import HashingEmbedder, LexicalJudge, Sample, evaluate

sample = Sample(
    question="Where is France and what is its capital?",
    contexts=["France is a country in western Europe.", "The capital of France is Paris."],
    answer="France is in western Europe and its capital is Lyon.",
)

evaluation = evaluate(  # code that awaits uses `aevaluate`
    sample,
    ["answer_relevancy", "context_relevance", "faithfulness", "response_groundedness"],
    judge=LexicalJudge(),  # or "openai/<model>", "ollama/<model>", any LangChain chat model
    embedder=HashingEmbedder(),
)

for score in evaluation.scores:
    value = "undefined" if score.value is None else f"{score.value:.2f}"
    print(f"{score.name:<22} {value}  {score.label or ''}  {score.reason or ''}")
print(f"judged by {evaluation.judge} in {evaluation.duration:.3f} s")
