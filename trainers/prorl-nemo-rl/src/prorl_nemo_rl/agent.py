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

from prorl.client import ClientError, ServiceError
from prorl_nemo_rl.rollouts import Rollouts
from prorl_nemo_rl.rows import BadRow
from prorl_nemo_rl.settings import RolloutSettings


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
        engine = get_first_server_config_dict(self.server_client.global_config_dict, self.config.model_server.name)
        urls = [engine["base_url"]] if isinstance(engine["base_url"], str) else list(engine["base_url"])
        app = super().setup_webserver()
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with Rollouts(settings, model=engine["model"], base_urls=urls) as self._rollouts, inner(app) as state:
                yield state

        app.router.lifespan_context = lifespan
        return app

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise HTTPException(501, "a rollout needs its whole row: POST /run")

    async def run(self, request: Request, body: ProrlRunRequest) -> Response:
        rollout = asyncio.ensure_future(self._rollouts.run(body.model_dump(exclude_unset=True)))
        gone = asyncio.ensure_future(request.receive())  # after the body, all that can come is a disconnect
        try:
            await asyncio.wait({rollout, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not rollout.done():
                raise HTTPException(499, "the caller has gone")
            return Response(msgspec.json.encode(rollout.result()), media_type="application/json")
        except BadRow as error:
            raise HTTPException(422, str(error)) from None
        except ServiceError as error:
            raise HTTPException(error.status, str(error)) from None
        except ClientError as error:
            raise HTTPException(503, str(error)) from None
        finally:
            gone.cancel()
            rollout.cancel()
