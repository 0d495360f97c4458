"""Bodies in and out: JSON by default, msgpack where Content-Type or Accept ask for it.

Bodies are decoded from the raw bytes, strictly: Litestar's own way would turn ``"1"`` into 1, and a token id is never
coerced.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import State

from prorl.server.problems import BadRequest, UnsupportedMediaType
from prorl.wire.wording import complaint

T = TypeVar("T", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, State]

JSON = "application/json"
MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


class Body(Generic[T]):
    """A request body of one type. ``default`` stands for an empty body, where that makes sense."""

    def __init__(self, kind: type[T], *, default: T | None = None) -> None:
        self.kind = kind
        self.optional = default is not None
        self._default = default
        self._from_json = msgspec.json.Decoder(kind)
        self._from_msgpack = msgspec.msgpack.Decoder(kind)

    async def read(self, request: AnyRequest) -> T:
        """Raises :class:`BadRequest` with the place in the body, or :class:`UnsupportedMediaType`."""
        raw = await request.body()
        if not raw and self._default is not None:
            return self._default
        content_type = _header(request, b"content-type", JSON).partition(";")[0].strip().lower()
        try:
            if content_type == JSON:
                return self._from_json.decode(raw)
            if content_type in MSGPACK:
                return self._from_msgpack.decode(raw)
        except msgspec.ValidationError as error:
            raise _invalid(error, self.kind) from None
        except msgspec.DecodeError as error:
            raise BadRequest(f"the body is not valid {content_type}: {error}") from None
        except (UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        raise UnsupportedMediaType(content_type)


def read_query(request: AnyRequest, kind: type[T]) -> T:
    """The query string as a ``kind``; here text does become numbers. Raises :class:`BadRequest`."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, kind) from None


def reply(
    request: AnyRequest, value: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """``value`` in the form that the client accepts."""
    if _wants_msgpack(request):
        return Response(_msgpack.encode(value), media_type=MSGPACK[0], status_code=status, headers=headers)
    return Response(_json.encode(value), media_type=JSON, status_code=status, headers=headers)


def reply_json(request: AnyRequest, body: bytes, kind: type[msgspec.Struct]) -> Response[bytes]:
    """A ``kind`` that is there as JSON already; most clients take it as it is."""
    if _wants_msgpack(request):
        return Response(_msgpack.encode(msgspec.json.decode(body, type=kind)), media_type=MSGPACK[0], status_code=200)
    return Response(body, media_type=JSON, status_code=200)


def _invalid(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> BadRequest:
    said = complaint(error, kind)
    return BadRequest(str(said), path=said.path, reason=said.what)


def _wants_msgpack(request: AnyRequest) -> bool:
    accept = _header(request, b"accept", "")
    return "msgpack" in accept and any(kind in accept for kind in MSGPACK)


def _header(request: AnyRequest, name: bytes, default: str) -> str:
    """From the raw list, whose names are in lower case: ``request.headers`` builds a mapping for every request."""
    for key, value in request.scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return default
