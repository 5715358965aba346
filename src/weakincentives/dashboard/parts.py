"""What the pages of one dashboard share."""

from dataclasses import dataclass

from starlette.requests import Request

from weakincentives.runtime.mailbox.seam.backend import Backend

from .audit import Audit
from .backend_calls import BackendCalls
from .config import DashboardConfig
from .contents import ContentsReader
from .history import History
from .letters import LetterScans
from .live import Announcer
from .passes import RunningPasses
from .rendering import Renderer
from .survey import Survey

__all__ = ["DashboardParts", "parts_of"]


@dataclass(frozen=True, slots=True)
class DashboardParts:
    """What the pages of one dashboard share."""

    config: DashboardConfig
    backend: Backend
    history: History
    survey: Survey
    announcer: Announcer
    renderer: Renderer
    reader: ContentsReader
    calls: BackendCalls
    scans: LetterScans
    passes: RunningPasses
    audit: Audit


def parts_of(request: Request) -> DashboardParts:
    """Return the parts of the dashboard that serves a request."""
    parts: DashboardParts = request.app.state.parts
    return parts
