"""``python -m rag_eval_otel``: the ``rag-eval-otel`` command line."""

import sys

from rag_eval_otel.cli import main

sys.exit(main())
