"""The Gym agent server: ``/run`` is a rollout of the service.

Gym starts it like its own agents (``gym env start``, NeMo RL); the folder with its entrypoint and config comes with
this package, ``responses_api_agents/prorl_agent``. Needs nemo-gym.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef
from nemo_gym.global_config import get_first_server_config_dict
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from pydantic import ConfigDict, PrivateAttr

from prorl.client import ServerUnreachable, ServiceError
from prorl.wire.results import RolloutResult
from prorl_nemo_rl.answer import answer
from prorl_nemo_rl.rollouts import Flight, Rollouts
from prorl_nemo_rl.rows import BadRow
from prorl_nemo_rl.settings import Policy, RolloutSettings


class ProrlAgentConfig(BaseResponsesAPIAgentConfig):
    """``model_server`` names the policy in Gym's config: its ``base_url`` and ``model`` are what is registered with
    the rollout servers. ``rollouts`` are :class:`~prorl_nemo_rl.settings.RolloutSettings`."""

    model_server: ModelServerRef
    rollouts: dict[str, Any]


class ProrlRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class ProrlAgent(SimpleResponsesAPIAgent):
    config: ProrlAgentConfig
    _rollouts: Rollouts = PrivateAttr()

    def setup_webserver(self) -> FastAPI:
        settings = msgspec.convert(self.config.rollouts, RolloutSettings)
        app = super().setup_webserver()
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with Rollouts(settings, self._policy()) as self._rollouts, inner(app) as state:
                yield state

        app.router.lifespan_context = lifespan
        return app

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise HTTPException(501, "a rollout needs its whole row: POST /run")

    async def run(self, request: Request, body: ProrlRunRequest) -> Response:
        row = body.model_dump(exclude_unset=True)
        try:
            flight = self._rollouts.board(row)
            result = await self._result(request, flight)
        except BadRow as error:
            raise HTTPException(422, str(error)) from None
        except ServiceError as error:
            raise HTTPException(error.status, str(error)) from None
        except ServerUnreachable as error:
            raise HTTPException(503, str(error)) from None
        return await asyncio.to_thread(self._respond, row, result)

    async def _result(self, request: Request, flight: Flight) -> RolloutResult:
        """Raises whatever the flight does, and 499 into the void when the caller has gone."""
        gone = asyncio.ensure_future(request.receive())  # after the body, all that can come is a disconnect
        try:
            await asyncio.wait({flight.task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not flight.task.done():
                raise HTTPException(499, "the caller has gone")
            return flight.task.result()
        finally:
            gone.cancel()
            if not flight.task.done():
                self._rollouts.leave(flight)

    def _respond(self, row: dict[str, Any], result: RolloutResult) -> Response:
        """On a thread: cumulative prompts are long, and the server has others to serve."""
        found = answer(row, result, self._rollouts.rules)
        if found["instance_config"]["mask_sample"] and self._rollouts.settings.masked == "refuse":
            raise HTTPException(503, found["rollout"]["masked_because"])
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _policy(self) -> Policy:
        server = get_first_server_config_dict(self.server_client.global_config_dict, self.config.model_server.name)
        urls = server["base_url"]
        return Policy(base_urls=[urls] if isinstance(urls, str) else list(urls), model=server["model"])
