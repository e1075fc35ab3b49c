"""Hooks of MkDocs: the sections of the site, and the documents at the root of the repository.

Documents link to one another and to code by their paths in the repository. On the site a link to a
document leads to its page, and one to any other file becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = {
    "Tutorial": "tutorial",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Experiments": "experiments",
    "Decisions": "adr",
}
"""Title of a section: the folder of its pages in docs/."""
ELSEWHERE = {"Reference": ("bus.md",)}
"""Pages of a section that are not in its folder, because programs name their paths."""
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "STYLE.md": "project/style.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Document at the root of the repository: its page, relative to docs/."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Fill the navigation: the front page, one section for each folder, the project."""
    docs = Path(config.docs_dir)
    nav: list[dict[str, Any]] = [{"Skep": "index.md"}]
    for title, folder in SECTIONS.items():
        paths = sorted((docs / folder).glob("*.md"), key=lambda path: (path.stem != "README", path))
        pages = [path.relative_to(docs).as_posix() for path in paths]
        nav.append({title: [*pages, *ELSEWHERE.get(title, ())]})
    nav.append({"Project": [page for page in ROOT_PAGES.values() if page != "index.md"]})
    config.nav = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the documents at the root of the repository."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with links as the site has them."""
    here: str = page.file.src_uri
    source = next((name for name, at in ROOT_PAGES.items() if at == here), f"docs/{here}")
    return LINK.sub(lambda link: _on_the_site(link, source, posixpath.dirname(here)), markdown)


def _on_the_site(link: re.Match[str], source: str, folder: str) -> str:
    image, text, target, anchor = link.groups(default="")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in ROOT_PAGES:
        page = ROOT_PAGES[path]
    elif path.startswith("docs/"):
        page = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return text
    else:
        return link[0]  # MkDocs reports that it leads nowhere.
    return f"{image}[{text}]({posixpath.relpath(page, folder or '.')}{anchor})"
