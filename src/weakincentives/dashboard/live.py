"""Tells open pages, by server-sent events, that there is something new to fetch."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from .survey import Survey

__all__ = ["Announcer"]

MOST_READERS = 200


class Announcer:
    """Passes on the end of each round of the survey to every page that listens."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._readers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._closed = False
        survey.when_done(self._announce)

    def respond(self) -> Response:
        """Return a stream of events that ends when the reader or the dashboard does."""
        if len(self._readers) >= MOST_READERS:
            return PlainTextResponse("too many pages are open\n", status_code=503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._announce()

    async def _events(self) -> AsyncIterator[str]:
        news = asyncio.Event()
        self._readers[news] = asyncio.get_running_loop()
        try:
            async for event in self._rounds(news):
                yield event
        finally:
            del self._readers[news]

    async def _rounds(self, news: asyncio.Event) -> AsyncIterator[str]:
        while not self._closed:
            yield self._event()
            await news.wait()
            news.clear()

    def _event(self) -> str:
        state = self._survey.state
        data = json.dumps({"version": state.version, "at": state.at, "error": state.error})
        return f"event: round\ndata: {data}\n\n"

    def _announce(self) -> None:
        """Wake all streams; this runs in the thread of the survey."""
        for news, loop in list(self._readers.items()):
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                pass  # that loop has ended
