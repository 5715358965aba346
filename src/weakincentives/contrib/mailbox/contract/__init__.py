"""The conformance suite for mailboxes: subclass `MailboxContract`, make a mailbox, run pytest.

    class TestMine(MailboxContract):
        def make_mailbox(self, name, **options):
            return MyMailbox(name, **options)

`ReplyStoreContract` does the same for reply stores. ``docs/contract.md`` lists the hooks.
"""

try:
    import hypothesis as hypothesis
    import pytest
except ImportError as error:
    raise ImportError(
        f"the contract suite needs {error.name}: pip install pytest hypothesis"
    ) from error

# Registered before the import, so that a failed assertion shows the values it compared.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in (
            "callers",
            "cancelling",
            "capabilities",
            "concurrency",
            "contents",
            "dead_letters",
            "delivery",
            "events",
            "release",
            "harness",
            "leases",
            "machine",
            "operating",
            "reply_channel",
            "reply_jobs",
            "reply_store",
            "reply_to",
            "round_trip",
            "type_checks",
            "validation",
            "waiting",
        )
    )
)

from .callers import Callers  # noqa: E402
from .cancelling import Cancelling  # noqa: E402
from .capabilities import DeclaredCapabilities  # noqa: E402
from .concurrency import Concurrency  # noqa: E402
from .contents import Contents  # noqa: E402
from .dead_letters import DeadLetters  # noqa: E402
from .delivery import Delivery  # noqa: E402
from .events import Events  # noqa: E402
from .leases import Leasing  # noqa: E402
from .machine import MailboxMachine, StateMachine  # noqa: E402
from .operating import Operating  # noqa: E402
from .release import Releasing  # noqa: E402
from .reply_channel import ExpectingReply  # noqa: E402
from .reply_store import ReplyStoreContract  # noqa: E402
from .reply_to import ReplyTo  # noqa: E402
from .round_trip import RoundTrip  # noqa: E402
from .type_checks import TypeChecks  # noqa: E402
from .validation import Validation  # noqa: E402
from .waiting import Waiting  # noqa: E402

__all__ = ["MailboxContract", "MailboxMachine", "ReplyStoreContract"]


class MailboxContract(
    Delivery,
    Waiting,
    Leasing,
    Releasing,
    Contents,
    ReplyTo,
    ExpectingReply,
    Callers,
    Cancelling,
    Operating,
    RoundTrip,
    TypeChecks,
    Validation,
    DeclaredCapabilities,
    DeadLetters,
    Events,
    Concurrency,
    StateMachine,
):
    """Tests everything a mailbox promises; override `make_mailbox`, and other hooks if needed."""
