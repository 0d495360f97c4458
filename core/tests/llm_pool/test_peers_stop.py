"""A peer that is stopped while clients knock leaves no socket open: what one test forgets is another test's failure."""

from __future__ import annotations

import gc
import socket
import threading
import warnings

from prorl.testing.httpd import HttpServer, Request, Response


class Polite(HttpServer):
    async def handle(self, request: Request) -> Response:
        return Response(body=request.body)


def knock(server: Polite, *, first: threading.Event) -> None:
    """Connect, ask and leave, until nobody listens any more."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    while True:
        try:
            with socket.create_connection((host, int(port))) as connection:
                connection.send(b"GET / HTTP/1.1\r\n\r\n")
        except OSError:
            return
        first.set()


def test_a_server_stopped_in_the_middle_of_accepting_closes_every_socket():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(40):
            server, first = Polite(), threading.Event()
            with server:
                caller = threading.Thread(target=knock, args=(server,), kwargs={"first": first})
                caller.start()
                first.wait()
            caller.join()
        del server
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
