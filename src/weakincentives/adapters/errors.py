"""Errors of a model's provider, one class for each kind, so that policies can name them."""

from weakincentives.errors import WinkError

__all__ = [
    "AuthenticationError",
    "ContentPolicyViolation",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "ResourceNotFoundError",
    "VisibilityExpansionRequired",
]


class ProviderError(WinkError):
    """The model's provider returned an error."""


class RateLimitError(ProviderError):
    """The provider got too many requests and asks to slow down."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds to wait, if the provider says so; a worker then delivers the message again
        after that time, and does not count a failure."""


class ContentPolicyViolation(ProviderError):
    """The provider refuses this content."""


class AuthenticationError(ProviderError):
    """The provider rejected the credentials."""


class QuotaExceededError(ProviderError):
    """The account has used up its quota."""


class ResourceNotFoundError(ProviderError):
    """The provider does not have the requested model or resource."""


class VisibilityExpansionRequired(WinkError):
    """The model needs more of the prompt first; this is not a failure, the request is retried."""
