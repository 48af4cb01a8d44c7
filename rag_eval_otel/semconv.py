"""Define the names of attributes, events and instruments that this library reads and writes.

The OpenTelemetry conventions for GenAI have moved out of the package
``opentelemetry-semantic-conventions`` and have no Python package of their own. Their names are
therefore constants here.
"""

from __future__ import annotations

from typing import Final

# --- GenAI semantic conventions (standard, status Development) ------------------------------------
GEN_AI_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_WORKFLOW_NAME: Final = "gen_ai.workflow.name"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105  # a name, not a secret
ERROR_TYPE: Final = "error.type"

# Texts of users: written only if the user turns this on.
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_RETRIEVAL_QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
GEN_AI_RETRIEVAL_DOCUMENTS: Final = "gen_ai.retrieval.documents"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

OPERATION_CHAT: Final = "chat"
OPERATION_TEXT_COMPLETION: Final = "text_completion"
OPERATION_RETRIEVAL: Final = "retrieval"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
OPERATION_INVOKE_WORKFLOW: Final = "invoke_workflow"

EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
GEN_AI_EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"

# --- Extensions of this library -------------------------------------------------------------------
EVALUATION_STATUS: Final = "rag.evaluation.status"
EVALUATION_LABEL: Final = "rag.evaluation.label"
EVALUATION_JUDGE: Final = "rag.evaluation.judge"
EVALUATION_DURATION: Final = "rag.evaluation.duration"
EVALUATION_REASON: Final = "rag.evaluation.reason"
EVALUATION_SUSPECTED: Final = "rag.evaluation.injection.suspected"
EVALUATION_TRUNCATED: Final = "rag.evaluation.truncated"
EVALUATION_CONTEXTS_SOURCE: Final = "rag.evaluation.contexts.source"
EVALUATION_THRESHOLD: Final = "rag.evaluation.threshold"
EVALUATION_VERSION: Final = "rag.evaluation.version"
EVALUATION_SAMPLING_PROBABILITY: Final = "rag.evaluation.sampling.probability"
EVALUATION_TOKENS: Final = "rag.evaluation.tokens"
EVALUATION_COST: Final = "rag.evaluation.cost"
EVALUATION_CURRENCY: Final = "rag.evaluation.currency"
EVALUATION_SAMPLING_TARGETED: Final = "rag.evaluation.sampling.targeted"
EVALUATION_ANNOTATOR: Final = "rag.evaluation.annotator"
HUMAN: Final = "human"
"""The annotator of feedback; an event of a score by a judge has no annotator."""
FEEDBACK_PREFIX: Final = "rag.feedback."
METRIC_PREFIX: Final = "rag.evaluation"
OFFLINE: Final = "offline"
"""Stands before the metric in names of attributes with scores of a cascade's offline judge."""
LEAF_SCORE: Final = "score"
LEAF_NORMALIZED_SCORE: Final = "normalized_score"
LEAF_LABEL: Final = "label"
LEAF_REASON: Final = "reason"
LEAF_THRESHOLD: Final = "threshold"
LEAF_VERSION: Final = "version"
LEAF_EXPLANATION: Final = "explanation"
LEAF_TOKENS: Final = "tokens"  # a number of tokens, not a secret
LEAF_COST: Final = "cost"
QUESTION: Final = "rag.question"
CONTEXTS: Final = "rag.contexts"
ANSWER: Final = "rag.answer"
RETRIEVAL_EVENT: Final = "rag.retrieval"
RETRIEVAL_QUERY: Final = "rag.retrieval.query"
RETRIEVAL_DOCUMENTS: Final = "rag.retrieval.documents"
RETRIEVAL_RECORDED: Final = "rag.retrieval.recorded"
SESSION_ID: Final = "session.id"
USER_ID: Final = "user.id"
METADATA_PREFIX: Final = "rag.metadata."
DOCUMENT_COUNT: Final = "rag.retrieval.document_count"
DATASET_NAME: Final = "rag.dataset.name"
DATASET_ROW: Final = "rag.dataset.row"
DRIFT_EVENT: Final = "rag.evaluation.drift"
BASELINE_EVENT: Final = "rag.evaluation.drift.baseline"
DRIFT_PREFIX: Final = "rag.evaluation.drift"
DRIFT_DIRECTION: Final = "rag.evaluation.drift.direction"
DRIFT_CAUSE: Final = "rag.evaluation.drift.cause"

# Instruments
SCORE: Final = "rag.evaluation.score"
OFFLINE_SCORE: Final = "rag.evaluation.offline.score"
WEIGHTED_SCORE: Final = "rag.evaluation.weighted.score"
WEIGHTED_COUNT: Final = "rag.evaluation.weighted.count"
DURATION: Final = "rag.evaluation.duration"
LAG: Final = "rag.evaluation.lag"
JUDGE_CALLS: Final = "rag.evaluation.judge.calls"
JUDGE_TOKENS: Final = "rag.evaluation.judge.tokens"
JUDGE_COST: Final = "rag.evaluation.judge.cost"
EMBEDDING_CALLS: Final = "rag.evaluation.embedding.calls"
EMBEDDING_TOKENS: Final = "rag.evaluation.embedding.tokens"
BUDGET_LEFT: Final = "rag.evaluation.budget.left"
LIMIT: Final = "limit"
TURNS: Final = "rag.evaluation.turns"
ERRORS: Final = "rag.evaluation.internal_errors"
CAPTURED: Final = "rag.evaluation.captured"
PENDING: Final = "rag.evaluation.pending"
HELD: Final = "rag.evaluation.held"
HELD_BYTES: Final = "rag.evaluation.held_bytes"
CACHE_LOOKUPS: Final = "rag.evaluation.cache.lookups"
RELEASED: Final = "rag.evaluation.released"
ENDPOINT_ATTEMPTS: Final = "rag.evaluation.endpoint.attempts"
ENDPOINT_DURATION: Final = "rag.evaluation.endpoint.duration"
ENDPOINT_NOT_SENT: Final = "rag.evaluation.endpoint.not_sent"
ENDPOINT_BREAKER: Final = "rag.evaluation.endpoint.breaker"
ENDPOINT_LIMIT: Final = "rag.evaluation.endpoint.limit"
ENDPOINT_IN_FLIGHT: Final = "rag.evaluation.endpoint.in_flight"
ENDPOINT_PAUSE: Final = "rag.evaluation.endpoint.pause"
ENDPOINT: Final = "endpoint"
BACKEND_SCORES: Final = "rag.evaluation.backend.scores"
BACKEND_QUEUED: Final = "rag.evaluation.backend.queued"
BACKEND: Final = "backend"
STATUS: Final = "status"
SERVICE_NAME: Final = "service.name"
OUTCOME: Final = "outcome"
REASON: Final = "reason"
PLACE: Final = "place"
DRIFT_ALARMS: Final = "rag.evaluation.drift.alarms"
DRIFT_EVIDENCE: Final = "rag.evaluation.drift.log10_evidence"

FEEDBACK_RECEIVED: Final = "rag.evaluation.feedback.received"
FEEDBACK_SCORE: Final = "rag.evaluation.feedback.score"
FEEDBACK_AGREEMENT: Final = "rag.evaluation.feedback.agreement"
FEEDBACK: Final = "feedback"
FEEDBACK_LABEL: Final = "feedback_label"

# Metrics of the OpenTelemetry SDK on itself
SDK_QUEUE_SIZE: Final = "otel.sdk.processor.span.queue.size"
SDK_QUEUE_CAPACITY: Final = "otel.sdk.processor.span.queue.capacity"
OTEL_COMPONENT_TYPE: Final = "otel.component.type"
OTEL_COMPONENT_NAME: Final = "otel.component.name"

# Instruments that our collector computes from exported spans
SPAN_SCORE: Final = "rag.evaluation.span.score"
SPAN_TURNS: Final = "rag.evaluation.span.turns"

SCORE_BOUNDS: Final = tuple(round(0.05 * i, 2) for i in range(1, 20))
"""The bucket bounds of the score histogram: 0.05, 0.1, ... 0.95.

Alerts cannot distinguish scores that lie between two neighbouring bounds.
"""

SCOPE: Final = "rag_eval_otel"
VERSION: Final = "0.1.0"
"""The version of this package, and of the instrumentation scope of its spans and metrics."""

metric_attribute: Final = (METRIC_PREFIX + ".{}.{}").format
"""Returns the name of a span attribute about a metric, ``rag.evaluation.<metric>.<leaf>``.

The arguments are the name of the metric and a leaf, such as ``score`` or ``label``.
"""

feedback_attribute: Final = (FEEDBACK_PREFIX + "{}.{}").format
"""Returns the name of a span attribute about feedback, ``rag.feedback.<name>.<leaf>``."""
