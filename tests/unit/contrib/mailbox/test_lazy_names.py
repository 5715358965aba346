import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives import runtime
from weakincentives.contrib import mailbox


def test_every_public_name_has_a_subpackage_and_no_other() -> None:
    assert set(mailbox._HOMES) == set(mailbox.__all__)


def test_importing_the_package_imports_no_driver() -> None:
    program = (
        "import sys, weakincentives.contrib.mailbox, weakincentives.runtime.mailbox\n"
        "loaded = {'redis', 'boto3', 'botocore', 'apsw', 'typer', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_any_driver_the_runtime_gives_all_the_rest() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('redis', 'boto3', 'botocore', 'apsw')))\n"
        "from weakincentives.runtime import *\n"
        "InMemoryMailbox('orders').send('tea')\n"
        "import weakincentives.runtime\n"
        "try:\n"
        "    weakincentives.runtime.RedisMailbox\n"
        "except ImportError as error:\n"
        "    assert \"pip install 'weakincentives[redis]'\" in str(error), error\n"
        "else:\n"
        "    sys.exit('RedisMailbox without redis')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("name", mailbox.__all__)
def test_the_runtime_has_the_same_names(name: str) -> None:
    assert getattr(runtime, name) is getattr(mailbox, name)


def test_the_runtime_has_no_others() -> None:
    with pytest.raises(AttributeError, match="KafkaMailbox"):
        runtime.KafkaMailbox  # noqa: B018


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="KafkaMailbox"):
        mailbox.KafkaMailbox  # noqa: B018
    with pytest.raises(ImportError):
        from weakincentives.contrib.mailbox import KafkaMailbox  # noqa: F401


@pytest.fixture
def extra_subpackages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(mailbox, "__path__", [*mailbox.__path__, str(tmp_path)])
    monkeypatch.setitem(mailbox._HOMES, "NeedyMailbox", ("needy", "needy"))
    return tmp_path


def test_a_name_is_found_when_it_is_first_used(extra_subpackages: Path) -> None:
    (extra_subpackages / "needy.py").write_text("class NeedyMailbox: pass\n")
    try:
        assert mailbox.NeedyMailbox.__name__ == "NeedyMailbox"
    finally:
        sys.modules.pop(f"{mailbox.__name__}.needy", None)
        vars(mailbox).pop("needy", None)


def test_a_missing_driver_is_named_with_the_extra_that_has_it(extra_subpackages: Path) -> None:
    (extra_subpackages / "needy.py").write_text("import no_such_driver\n")
    with pytest.raises(
        ImportError, match=r"NeedyMailbox .*no_such_driver.*pip install 'weakincentives\[needy\]'"
    ):
        mailbox.NeedyMailbox  # noqa: B018


def test_a_missing_part_of_ours_is_not_blamed_on_a_driver(extra_subpackages: Path) -> None:
    (extra_subpackages / "needy.py").write_text("import weakincentives.no_such_part\n")
    with pytest.raises(ModuleNotFoundError, match=r"weakincentives\.no_such_part"):
        mailbox.NeedyMailbox  # noqa: B018
