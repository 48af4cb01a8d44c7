"""`LocalJudge` with small models of random weights in the real libraries."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rag_eval_otel import Config, LocalJudge, aevaluate
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.local import Classifier
from rag_eval_otel.models import build_plain_judge
from rag_eval_otel.tools import evaluate_dataset
from support import SAMPLE

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the libraries

NLI = ("contradiction", "entailment", "neutral")
TEXT = "albert einstein was born march 14 , 1879 . at ulm in he the a when ? why one two"
WORDS = TEXT.split()
SPECIAL = ("PAD", "UNK", "CLS", "SEP", "MASK")
POSITIONS = 32
CLASSIFIER = "BertForSequenceClassification"


def save_model(folder: Path, labels: Sequence[str], *, kind: str = CLASSIFIER) -> Path:
    special = [f"[{name}]" for name in SPECIAL]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        **{f"{name.lower()}_token": f"[{name}]" for name in SPECIAL},
    ).save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=POSITIONS,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
        initializer_range=1.0,
    )
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("nli"), NLI)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("reranker"), ["LABEL_0"])


def reference(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Return the model's probability of the supporting label, one pair at a time."""
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for pair in pairs:
        with torch.no_grad():
            logits = model(**tokenizer(*pair, return_tensors="pt")).logits[0]
        one = torch.sigmoid(logits)[0] if len(logits) == 1 else torch.softmax(logits, -1)[1]
        found.append(float(one))
    return found


def test_probabilities_are_those_of_the_model(nli: Path, reranker: Path) -> None:
    """Batched and single probabilities agree to 1e-5, with three labels and with one."""
    texts = ("Albert Einstein was born .", "He was born at Ulm .")
    pairs = [(text, claim) for text in texts for claim in ("Einstein was born", "1879 ?", "why")]
    for folder in (nli, reranker):
        found = Classifier(folder, None, device="cpu", batch=4).probabilities(pairs)
        assert list(found) == pairs
        assert list(found.values()) == pytest.approx(reference(folder, pairs), abs=1e-5)
    relevances = Classifier(reranker, None, device="cpu", batch=4).relevances(pairs)
    flipped = [(claim, text) for text, claim in pairs]
    assert list(relevances.values()) == pytest.approx(reference(reranker, flipped), abs=1e-5)


def test_windows_fit_the_model(nli: Path) -> None:
    """A long context is read in windows without truncation."""
    claim = "Einstein was born"
    text = " ".join(WORDS[i % len(WORDS)] for i in range(400))
    classifier = Classifier(nli, None, device="cpu", batch=4)
    windows = list(classifier._windows(text, claim))  # noqa: SLF001
    assert classifier.length == POSITIONS
    tokenizer = transformers.AutoTokenizer.from_pretrained(nli)
    assert max(len(tokenizer(*window)["input_ids"]) for window in windows) <= POSITIONS
    assert windows[0][0] == text[: len(windows[0][0])]
    assert text.endswith(windows[-1][0])
    best = classifier.probabilities([(text, claim)])[text, claim]
    assert best == pytest.approx(max(reference(nli, windows)), abs=1e-5)


@pytest.mark.parametrize("name", ["nli", "reranker"])
def test_a_sample_is_scored(name: str, request: pytest.FixtureRequest) -> None:
    """The default set gives repeatable numbers in [0, 1] and names the judge."""
    folder = request.getfixturevalue(name)
    first, again = (
        evaluate_dataset([SAMPLE] * 4, judge=f"local/{folder}", embedder="hashing")
        for _ in range(2)
    )
    for metric in ("faithfulness", "response_groundedness", "context_relevance"):
        values = [row.evaluation[metric].value for row in first.rows]
        assert all(value is not None and 0 <= value <= 1 for value in values)
        assert values == [row.evaluation[metric].value for row in again.rows]
    assert first.judge is not None
    assert first.judge.startswith(f"local/{folder.name}-")


def test_unsuitable_models_are_errors(tmp_path: Path, nli: Path) -> None:
    """A missing model, one without a classifier, unknown labels and a bad device are errors."""
    odd = save_model(tmp_path / "odd", [f"LABEL_{i}" for i in range(5)])
    plain = save_model(tmp_path / "plain", NLI, kind="BertModel")
    (tmp_path / "empty").mkdir()
    for name, told in (
        (f"local/{tmp_path}/nowhere", "cannot be loaded"),
        (f"local/{tmp_path}/empty", "cannot be loaded"),
        ("local/nobody/nothing-at-all", "cannot be loaded"),
        (f"local/{odd}", "has 5 labels"),
        (f"local/{plain}", "no classifier of pairs"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_plain_judge(Config(judge=name))
    with pytest.raises(ConfigError, match="device"):
        LocalJudge(nli, device="quantum")
    labelled = LocalJudge(odd, label="LABEL_4", device="cpu")
    evaluation = asyncio.run(aevaluate(SAMPLE, ["faithfulness"], judge=labelled))
    assert evaluation["faithfulness"].status == "ok"
