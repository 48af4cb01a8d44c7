"""Detect drift of scores with a detector of river. Needs: pip install river."""

import sys

try:
    from river.drift import ADWIN
except ImportError:
    sys.exit("this example needs river: pip install river")

from rag_eval_otel.drift import DriftMonitor, DriftOptions, Stream

# In an application: instrument(drift=DriftOptions(detector=ADWIN(delta=1e-5), on_drift=print))
options = DriftOptions(detector=ADWIN(delta=1e-5))
monitor = DriftMonitor(print, make=options.make_detector)

faithfulness = Stream(service="shop", name="faithfulness")
before = ([1.0] * 9 + [0.0]) * 200  # 2,000 scores with a mean of 0.9
after = [1.0, 0.0] * 100  # 200 scores with a mean of 0.5
for score in before + after:
    monitor.update(faithfulness, score)
