"""What comes from others is exactly what they published, with their licences."""

import hashlib
import json
from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[2] / "src/weakincentives/dashboard/static/vendor"
LISTED = json.loads((VENDOR / "vendored.json").read_text())


@pytest.mark.parametrize("entry", LISTED, ids=lambda entry: entry["file"])
def test_a_vendored_file_is_unchanged_and_has_its_licence(entry: dict[str, str]) -> None:
    data = (VENDOR / entry["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert "warrant" in (VENDOR / entry["licence"]).read_text().lower()


def test_every_vendored_file_is_listed() -> None:
    known = {name for entry in LISTED for name in (entry["file"], entry["licence"])}
    assert {path.name for path in VENDOR.iterdir()} == known | {"vendored.json"}


def test_no_page_or_script_of_ours_names_another_site() -> None:
    ours = [*(VENDOR.parent).glob("*.*"), *(VENDOR.parents[1] / "templates").glob("*.html")]
    assert len(ours) > 6
    for path in ours:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        # The policy of the pages forbids both.
        assert "<style" not in text, path
        assert " style=" not in text, path
        assert " onclick" not in text, path


def test_pictures_of_the_docs_are_small() -> None:
    pictures = list((Path(__file__).parents[2] / "docs" / "images").glob("dashboard-*.png"))
    assert len(pictures) == 15
    assert max(path.stat().st_size for path in pictures) < 150_000
