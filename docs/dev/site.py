"""Hooks of MkDocs: links to files that are not on the site lead to GitHub; pages for agents."""

import posixpath
import re
from pathlib import Path
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


def on_nav(nav: Any, *, config: Any, **_: Any) -> None:
    config.extra["pages"] = nav.pages


def on_post_build(*, config: Any) -> None:
    """Write each page as Markdown too, and `llms.txt`: their addresses, with a sentence each."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    for page in config.extra["pages"]:
        Path(config.site_dir, page.file.src_uri).write_text(page.markdown, "utf-8")
        texts = re.sub(r"(?s)```.*?```", "", page.markdown).split("\n\n")
        first = next(text for text in texts if re.match("[A-Z`]", text))
        sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()))[0]
        lines.append(f"- [{page.title}]({config.site_url}{page.file.src_uri}): {sentence}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
