"""``python -m rag_eval_otel``: the ``rag-eval-otel`` command line."""

import sys
from importlib.metadata import entry_points

(_script,) = entry_points(group="console_scripts", name="rag-eval-otel")
sys.exit(_script.load()())
