"""Write ``docs/metrics.md``."""

from metrics_page.page import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
