"""Every page of docs is in the navigation of the site, once. `make site` builds the site and checks its links."""

from collections import Counter
from collections.abc import Iterator

import yaml

from servers import ROOT

DOCS = ROOT / "docs"
GENERATED = "reference/"
"""The folder of the pages that .ci/site.py makes from the code."""


class Loader(yaml.SafeLoader):
    """Reads the settings of the site, which name a function of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def named(entry: object) -> Iterator[str]:
    """Yield the pages that an entry of the navigation names; a folder with `*` stands for its pages."""
    if isinstance(entry, dict):
        entry = list(entry.values())
    if isinstance(entry, list):
        for inner in entry:
            yield from named(inner)
    elif str(entry).endswith("/*"):
        yield from (page.relative_to(DOCS).as_posix() for page in DOCS.glob(f"{entry}.md"))
    else:
        yield str(entry)


def wrong(nav: object, pages: set[str]) -> list[str]:
    """Return what is wrong with a navigation of these pages."""
    found = Counter(page for page in named(nav) if not page.startswith(GENERATED))
    return [
        *(f"{page} is not in the navigation of .mkdocs.yml" for page in sorted(pages - set(found))),
        *(f"{page} is in the navigation, and is gone" for page in sorted(set(found) - pages)),
        *(f"{page} is in the navigation {count} times" for page, count in found.items() if count > 1),
    ]


def test_every_page_is_in_the_navigation_of_the_site_once():
    nav = yaml.load((ROOT / ".mkdocs.yml").read_text(), Loader)["nav"]
    assert wrong(nav, {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}) == []


def test_a_page_that_is_missing_gone_or_twice_in_the_navigation_is_named():
    nav = [
        {"Start": [{"A": "a.md"}, "b.md", {"Again": "b.md"}]},
        {"All": "moving/*"},
        {"API": "reference/x.md"},
    ]
    moving = {page.relative_to(DOCS).as_posix() for page in DOCS.glob("moving/*.md")}
    assert moving
    assert wrong(nav, {"b.md", "c.md", *moving}) == [
        "c.md is not in the navigation of .mkdocs.yml",
        "a.md is in the navigation, and is gone",
        "b.md is in the navigation 2 times",
    ]
