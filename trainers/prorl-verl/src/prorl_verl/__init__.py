"""veRL learns from rollouts that ProRL servers run.

::

    verl's agent-loop worker                                   ProRL rollout server
    RolloutServiceAgentLoop ── the row, as a job ────────────> INIT, RUN, EVAL
                            <── a scored, certified trajectory ──┘   │
    Gateway <────────────────── token ids in, token ids out ─────────┘
       └─> verl's own LLM client: weight sync, abort and resume, sticky routing stay verl's

Import :class:`~prorl_verl.agent_loop.RolloutServiceAgentLoop` and
:class:`~prorl_verl.sampler.RolloutServiceReplayBuffer` from their modules: verl's configuration names them.
"""
