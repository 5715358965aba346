"""What can go wrong at a provider, so that policies can tell one failure from another."""

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
    """The provider failed."""


class RateLimitError(ProviderError):
    """The provider asks to slow down."""


class ContentPolicyViolation(ProviderError):
    """The provider refuses this content."""


class AuthenticationError(ProviderError):
    """The provider does not accept the credentials."""


class QuotaExceededError(ProviderError):
    """The account has nothing left to spend."""


class ResourceNotFoundError(ProviderError):
    """The provider does not know what was asked for."""


class VisibilityExpansionRequired(WinkError):
    """The prompt must be shown in more detail first: not a failure, the request is tried again."""
