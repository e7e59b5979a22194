"""The few HTTP calls the testbed itself makes to a cluster.

Blocking, one connection per request, so that nothing is stale after an API server was killed on purpose;
async code reaches it through `asyncio.to_thread`. The dispatcher's own client lives in `dispatcher.kube`: the
testbed does not lean on what it is there to test.
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
# How the server is asked to merge lists by their keys: what `kubectl label`, `cordon` and the kubelet use.
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """Speaks JSON to one API server with one bearer token. Safe to share between threads."""

    def __init__(self, url: str, token: str, ca_pem: str) -> None:
        self._address = urlsplit(url).netloc
        self._token = token
        self._tls = ssl.create_default_context(cadata=ca_pem)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str = JSON
    ) -> dict[str, Any]:
        """Send one request and return the answer; raises `ApiError`, or `OSError` if there is no server."""
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": JSON, "Content-Type": content_type}
        status, answer = self._exchange(method, path, content, headers)
        if status >= 400:
            raise ApiError(status, str(parsed(answer).get("message", answer)))
        return parsed(answer)

    def get(self, path: str) -> dict[str, Any]:
        """Read one object or list."""
        return self.request("GET", path)

    def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or make it what is said here. Safe to repeat."""
        query = f"{path}?fieldManager=testbed&force=true"
        return self.request("PATCH", query, body, APPLY_PATCH)

    def _exchange(
        self, method: str, path: str, content: str | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(self._address, timeout=TIMEOUT_SECONDS, context=self._tls)
        try:
            connection.request(method, path, content, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def parsed(answer: bytes) -> dict[str, Any]:
    """Return the object in an answer; what is not one, as of the health endpoints, becomes its `text`."""
    return dict(json.loads(answer)) if answer.startswith(b"{") else {"text": answer.decode(errors="replace")}
