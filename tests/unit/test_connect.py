import pytest

import weakincentives
from weakincentives import Backend, connect
from weakincentives.runtime.mailbox import InvalidParameterError


def test_connect_opens_the_place_that_a_url_names() -> None:
    with connect("memory://") as backend:
        place: Backend = backend
        place.mailbox("orders").send("tea")
        (message,) = place.mailbox("orders").receive()
        assert message.body == "tea"


def test_an_unknown_url_is_refused_with_what_would_be_known() -> None:
    with pytest.raises(InvalidParameterError, match=r"kafka://.*memory://.*sqlite://.*redis://"):
        connect("kafka://broker")


def test_the_package_has_a_version() -> None:
    assert weakincentives.__version__[0].isdigit()
