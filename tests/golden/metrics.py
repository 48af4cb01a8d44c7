"""From a metric's name in the golden files and its parameters to our metric, by public classes."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from golden.cases import Case, Row
from rag_eval_otel import metrics as m
from rag_eval_otel.metrics.base import Metric

Params: TypeAlias = "Mapping[str, Any]"


def metric_of(case: Case, row: Row | None = None) -> Metric:
    name, params = case["metric"], case["params"]
    if name == "hs_sas":
        return _sas(case, row)
    if name == "hs_llm_evaluator":
        return _custom(case)
    if name == "hs_context_relevance" and "statement_scores" in case["judge"]:
        return m.StatementContextRelevance(rule="proportion")
    return METRICS[name](params)


def _correctness(params: Params) -> Metric:
    weights = params.get("weights", (0.75, 0.25))
    return m.AnswerCorrectness(beta=params.get("beta", 1.0), weights=tuple(weights))


def _similarity(params: Params) -> Metric:
    if params.get("threshold") is None:
        return m.SemanticSimilarity()
    return m.SemanticSimilarity(rule="threshold", threshold=params["threshold"])


def _rubric(params: Params) -> Metric:
    levels = params.get("rubrics")
    return m.Rubric(levels=levels) if isinstance(levels, Mapping) else m.Rubric()


def _kept(params: Params, *names: str) -> dict[str, Any]:
    return {name: params[name] for name in names if name in params}


def _ranking(name: str, option: str = "", **names: str) -> Callable[[Params], Metric]:
    """Make the metric ``name``, or the one that the value of a parameter stands for."""
    return lambda params: m.metric(names.get(str(params.get(option)), name), k=params.get("k"))


def _sas(case: Case, row: Row | None) -> Metric:
    logits = case["judge"].get("pair_logits")
    if not logits or row is None:
        return m.SemanticSimilarity()
    logit = row.judge["logit"]  # of the whole batch, Haystack maps none or each to (0, 1)
    value = 1 / (1 + math.exp(-logit)) if max(logits) > 1 else logit
    return m.FunctionMetric(function=lambda _: value, name="semantic_similarity")


def _custom(case: Case) -> Metric:
    given = case["params"].get("constructor", {})
    options: dict[str, Any] = {name: ast.literal_eval(text) for name, text in given.items()}
    asked = case["params"].get("outputs")
    if asked:
        value = "score" if "score" in asked else asked[0]
        seen = _first_object(case["judge"].get("raw", []))
        types = {name: type(seen.get(name)) for name in asked}
        kinds = {name: kind if kind in {bool, str} else float for name, kind in types.items()}
        options |= {"value": value, "outputs": {**kinds, value: float}, "inputs": ("answer",)}
    return m.LLMMetric(**{"name": "llm", "instructions": "Grade the material.", **options})


def _first_object(raw: list[Any]) -> dict[str, Any]:
    for text in raw:
        with suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
    return {}


METRICS: Mapping[str, Callable[[Params], Metric]] = {
    "answer_accuracy": lambda _: m.metric("answer_accuracy"),
    "answer_correctness": _correctness,
    "answer_relevancy": lambda params: m.AnswerRelevancy(strictness=params.get("n", 3)),
    "context_precision": lambda _: m.metric("context_precision"),
    "context_recall": lambda _: m.metric("context_recall"),
    "context_relevance_dual": lambda _: m.metric("context_relevance", judges=2),
    "context_utilization": lambda _: m.metric("context_utilization"),
    "faithfulness": lambda _: m.Faithfulness(form="full"),
    "hs_answer_exact_match": lambda _: m.metric("answer_exact_match"),
    "hs_context_relevance": lambda _: m.StatementContextRelevance(form="full"),
    "hs_document_map": _ranking("average_precision"),
    "hs_document_mrr": _ranking("mrr"),
    "hs_document_ndcg": _ranking("ndcg"),
    "hs_document_recall": _ranking("hit_rate", "mode", multi_hit="retrieval_recall"),
    "hs_faithfulness": lambda _: m.StatementFaithfulness(form="full"),
    "id_context_precision": lambda _: m.metric("id_context_precision"),
    "id_context_recall": lambda _: m.metric("id_context_recall"),
    "instance_rubric_score": lambda _: m.InstanceRubric(),
    "li_answer_relevancy": lambda _: m.metric("answer_relevancy_rubric"),
    "li_average_precision": _ranking("average_precision"),
    "li_context_relevancy": lambda _: m.metric("context_relevancy_rubric"),
    "li_correctness": lambda params: m.Correctness(threshold=params.get("score_threshold", 4.0)),
    "li_faithfulness": lambda _: m.metric("response_supported"),
    "li_guideline": lambda params: m.Guideline(**_kept(params, "guidelines")),
    "li_hit_rate": _ranking("hit_rate", "granular", **{"True": "retrieval_recall"}),
    "li_mrr": _ranking("mrr", "granular", **{"True": "mrr_of_all"}),
    "li_ndcg": _ranking("ndcg", "mode", exponential="ndcg_exponential"),
    "li_precision": _ranking("retrieval_precision"),
    "li_recall": _ranking("retrieval_recall"),
    "li_relevancy": lambda _: m.metric("context_agreement"),
    "li_semantic_similarity": lambda params: m.SemanticSimilarity(
        mode=params.get("mode", "cosine"), threshold=params.get("threshold", 0.8)
    ),
    "mm_comprehensive": lambda params: m.MultiMethodRelevancy(
        strictness=params.get("n", 3), **_kept(params, "weights")
    ),
    "mm_decomposition": lambda _: m.DecompositionRelevancy(),
    "mm_direct": lambda _: m.metric("direct_relevancy"),
    "mm_intent": lambda _: m.IntentRelevancy(),
    "mm_reverse": lambda params: m.ReverseRelevancy(strictness=params.get("n", 3)),
    "response_groundedness": lambda _: m.metric("response_groundedness", judges=2),
    "rubric_score": _rubric,
    "semantic_similarity": _similarity,
}
