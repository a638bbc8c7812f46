"""The pages: both languages have the same ones, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def twin(page: Path) -> Path:
    """Return the Chinese page of an English one."""
    return ROOT / "README.zh.md" if page.parent == ROOT else ROOT / "docs" / "zh" / page.name


PAGES = [*ENGLISH, *map(twin, ENGLISH), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ .+$", prose(page), re.M)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found = set()
    for heading in headings(page):
        words = heading.lstrip("#").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def test_both_languages_have_the_same_pages() -> None:
    chinese = {page.name for page in (ROOT / "docs" / "zh").glob("*.md")}
    assert chinese == {page.name for page in (ROOT / "docs").glob("*.md")}
    assert {"tools.md", "errors.md", "lifetimes.md", "architecture.md", "proxies.md"} <= chinese


@pytest.mark.parametrize("page", ENGLISH, ids=name)
def test_both_languages_have_the_same_headings_and_the_same_examples(page: Path) -> None:
    levels = [[len(h) - len(h.lstrip("#")) for h in headings(p)] for p in (page, twin(page))]
    assert levels[0] == levels[1]
    examples = [FENCE.findall(p.read_text("utf-8")) for p in (page, twin(page))]
    opened = [[example.splitlines()[0] for example in side] for side in examples]
    assert opened[0] == opened[1]
    tables = [len(re.findall(r"^\|", prose(p), re.M)) for p in (page, twin(page))]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("page", ENGLISH, ids=name)
def test_each_page_leads_to_its_twin_and_back(page: Path) -> None:
    for one, other in ((page, twin(page)), (twin(page), page)):
        targets = {(one.parent / link).resolve() for link in links(one) if "://" not in link}
        assert other in targets


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", ENGLISH[1:], ids=name)
def test_the_readme_of_each_language_leads_to_every_page(page: Path) -> None:
    assert f"docs/{page.name}" in links(ROOT / "README.md")
    assert f"docs/zh/{page.name}" in links(ROOT / "README.zh.md")
