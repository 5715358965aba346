"""What the places of the contract need."""

from tests.contract.consumer_elsewhere import elsewhere
from tests.services import on_each_flavour as pytest_generate_tests

__all__ = ["elsewhere", "pytest_generate_tests"]
