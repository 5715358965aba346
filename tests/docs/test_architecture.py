"""The page about the rooms names files that exist, and leaves out no room."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "weakincentives"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATH = re.compile(r"(?:\w+/)*\w+\.(?:py|sql|lua|toml)|(?:\w+/)+")


def named_paths() -> set[str]:
    return {name for name in re.findall(r"`([^`\n]+)`", TEXT) if PATH.fullmatch(name)}


def exists(name: str) -> bool:
    homes = (SOURCE, SOURCE / "runtime", ROOT)
    return any((home / name).exists() for home in homes)


def test_every_path_on_the_page_exists() -> None:
    assert len(named_paths()) > 40
    # In "mailbox.py in the room of each backend", the name stands for one file in every room.
    for backend in ("sqlite", "redis", "sqs"):
        assert (SOURCE / "contrib" / "mailbox" / backend / "mailbox.py").exists()
    missing = {
        name for name in named_paths() - {"mailbox.py", "src/weakincentives/"} if not exists(name)
    }
    assert sorted(missing) == []


def test_every_room_is_on_the_page() -> None:
    rooms = {path.parent.name for path in SOURCE.rglob("*.py")}
    named = {word for path in re.findall(r"[\w/]+/", TEXT) for word in path.split("/") if word}
    assert rooms - named == {"demo"}, "the demo is a single command of wink"
