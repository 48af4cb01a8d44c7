"""A tour of the metrics on three rows. Runs offline: no key, no network, no model.

`rag-eval-otel metrics` lists all metrics with their inputs.
"""

from rag_eval_otel import HashingEmbedder, LexicalJudge, Sample
from rag_eval_otel.metrics import LLMMetric, Rubric
from rag_eval_otel.tools import evaluate_dataset

EUROPE, PARIS = "France is a country in western Europe.", "The capital of France is Paris."
PLACE = "France is in western Europe."
ANSWERS = [f"{PLACE} Its capital is Paris.", f"{PLACE} Its capital is Lyon.", "I do not know."]
rows = [
    Sample(
        question="Where is France and what is its capital?",
        contexts=[EUROPE, "Cats sleep for most of the day.", PARIS],
        answer=answer,
        reference="France is in western Europe. The capital of France is Paris.",
        retrieved_ids=["europe", "cats", "paris"],
        relevant_ids={"europe": 1, "paris": 2},  # id to grade; a list of ids works as well
    )
    for answer in ANSWERS
]
metrics = [
    *("answer_relevancy", "faithfulness", "context_utilization"),  # without a reference
    *("answer_correctness", "context_recall"),  # with a reference
    *("mrr", "ndcg"),  # with relevant ids
    Rubric(levels={0: "Wrong.", 0.5: "Half right.", 1: "Right."}),
    LLMMetric(name="politeness", instructions="How polite is the answer?", inputs=["answer"]),
]
result = evaluate_dataset(rows, metrics, judge=LexicalJudge(), embedder=HashingEmbedder())
print(result)

for row in result.rows:
    scores = row.evaluation.scores
    print({s.name: s.reason if s.value is None else round(s.value, 2) for s in scores})

# Rubrics and instructions need an LLM judge, such as OpenAIJudge("<model>"):
print(result.rows[0].evaluation["politeness"].detail["error"])
