"""docs/serve.md: its programs run against a real service, and its tables are whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.express import Service, environment, served
from tests.support.node import NODE, installed_packages

from agent_sandbox import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "serve.md", ROOT / "docs" / "zh" / "serve.md"]


def block(page: Path, language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return str(found)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("serve")) as running:
        yield running


def variables(service: Service, page: Path) -> dict[str, str]:
    """Return what the page says to export, with the address of the service."""
    exported = dict(re.findall(r"export (\w+)=(\S+)", block(page, "bash")))
    assert set(exported) == {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"}
    return {
        name: value.replace("http://127.0.0.1:8080", service.url)
        for name, value in exported.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
@pytest.mark.parametrize("language", ["py", "js"])
def test_the_example_of_an_sdk_runs_as_it_stands(
    service: Service, page: Path, language: str, tmp_path: Path
) -> None:
    script = tmp_path / ("example.py" if language == "py" else "example.mjs")
    script.write_text(block(page, language), "utf-8")
    (tmp_path / "node_modules").symlink_to(installed_packages() / "node_modules")
    done = subprocess.run(
        [sys.executable if language == "py" else str(NODE), str(script)],
        env=environment(variables(service, page)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "6"


@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
def test_the_table_of_metrics_has_every_metric_with_its_labels(
    service: Service, page: Path
) -> None:
    shown = dict(
        re.findall(r"^\| `(agent_sandbox_\w+)(?:\{([\w,]+)\})?` ", page.read_text("utf-8"), re.M)
    )
    service.http.get("/health")
    box = service.create()
    box.put("/tmp/a", b"1")
    box.get("/tmp/missing")
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(
        r"^(agent_sandbox_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? ",
        service.http.get("/metrics").text,
        re.M,
    ):
        found.setdefault(name, set()).update(set(re.findall(r"(\w+)=", labels)) - {"le"})
    assert {name: set(filter(None, labels.split(","))) for name, labels in shown.items()} == found


@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
def test_the_table_of_options_has_every_option(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--help"]) == 0
    offered = set(re.findall(r"--[a-z-]+", capsys.readouterr().out.partition("examples:")[0]))
    rows = "\n".join(re.findall(r"^\| `--.*", page.read_text("utf-8"), re.M))
    assert set(re.findall(r"--[a-z-]+", rows)) == offered - {"--help"}
