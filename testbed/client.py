"""The few HTTP calls that the testbed itself makes to a cluster.

Calls block and use one connection per request, so that no connection is stale after a test kills an API server. Async
code uses `asyncio.to_thread`. The testbed does not use `dispatcher.kube`, because it tests that client.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
# The server merges lists by their keys; `kubectl label`, `cordon` and the kubelet use this type.
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """Sends JSON to one API server with one bearer token. Safe to share between threads."""

    def __init__(self, url: str, token: str, ca_pem: str) -> None:
        self._address = urlsplit(url).netloc
        self._token = token
        self._tls = ssl.create_default_context(cadata=ca_pem)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: float = TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        """Sends one request and returns the answer; raises `ApiError`, or `OSError` if no server answers."""
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": JSON, "Content-Type": content_type}
        status, answer = self._exchange(method, path, content, headers, timeout)
        if status >= 400:
            raise ApiError(status, str(parsed(answer).get("message", answer)))
        return parsed(answer)

    def get(self, path: str) -> dict[str, Any]:
        """The object or list at this path."""
        return self.request("GET", path)

    def apply(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout: float = TIMEOUT_SECONDS,
        manager: str = "testbed",
    ) -> dict[str, Any]:
        """Creates or changes an object to this state. Safe to repeat.

        Fields that only other managers applied stay as they are.
        """
        query = f"{path}?fieldManager={manager}&force=true"
        return self.request("PATCH", query, body, APPLY_PATCH, timeout)

    def _exchange(
        self, method: str, path: str, content: str | None, headers: Mapping[str, str], timeout: float
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(self._address, timeout=timeout, context=self._tls)
        try:
            connection.request(method, path, content, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def parsed(answer: bytes) -> dict[str, Any]:
    """The object in an answer; any other answer, as of the health endpoints, becomes its `text`."""
    return dict(json.loads(answer)) if answer.startswith(b"{") else {"text": answer.decode(errors="replace")}
