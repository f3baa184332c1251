"""A page of HTML, read strictly."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "source"}


class Page(HTMLParser):
    """Every tag closed in order, and what the page refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.links += [known[name] or "" for name in ("src", "href", "data", "poster", "srcset") if name in known]
        if tag == "section":
            self.sections.append(known["id"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
