"""Sending a webhook."""

from collections.abc import Mapping

import httpx


class Poster:
    """One client for all hooks. Redirects are not followed: what was signed for one address is not sent to another."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds for each step of a request."""
        self._http = httpx.AsyncClient(timeout=timeout, follow_redirects=False)

    async def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the answer, whose body is not read. Raises OSError when there is none, with what went wrong."""
        try:
            async with self._http.stream("POST", url, content=body, headers=dict(headers)) as answer:
                return answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    async def close(self) -> None:
        await self._http.aclose()
