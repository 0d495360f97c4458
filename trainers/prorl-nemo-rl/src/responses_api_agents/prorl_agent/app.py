"""Entrypoint of the agent server, as Gym starts it: in this folder, with this folder's requirements."""

from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint

from prorl_nemo_rl.agent import ProrlAgent

if __name__ == "__main__":
    ProrlAgent.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = ProrlAgent.run_webserver()
