"""A hook of MkDocs: links to files of the repository that are not on the site lead to GitHub."""

import posixpath
import re
from typing import Any

REPOSITORY = "https://github.com/rag-eval-otel/rag-eval-otel/blob/main/"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s]+)(\))")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with absolute links where a relative one leaves the folder ``docs``."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]}{REPOSITORY}{path}{link[3]}"

    return _LINK.sub(absolute, markdown)
