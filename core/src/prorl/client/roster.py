"""What the asynchronous DAPO collector knows: groups under way, samples to roll out, groups that are ready.

Pure bookkeeping, without a clock or a loop; :mod:`prorl.client.collector` does the waiting.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec

from prorl.client.errors import ClientError
from prorl.client.groups import Attempt, Group, Informative, Prompt, rewards_differ


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``samples`` rollouts per prompt (n), ``wanted`` informative groups per batch (K), ``in_flight`` rollouts at once.

    ``attempts``: how often one sample is tried; ``min_samples``: how many must succeed (``None``: all). ``carry``: let
    running rollouts go on into the next batch instead of cancelling them. ``max_lag``: how many steps old a sample may
    be when it is handed out (0: only of the current step). ``max_groups``: how many ended groups one batch may cost;
    then it is handed out as it is, saying so. ``rollout_s``: after this long a rollout counts as lost.
    ``give_up_after``: this many incomplete groups in a row end the collecting with an error.
    """

    samples: int
    wanted: int
    in_flight: int
    attempts: int = 2
    min_samples: int | None = None
    carry: bool = False
    max_lag: int = 1
    max_groups: int | None = None
    rollout_s: float = 86_400.0
    cancel_s: float = 30.0
    give_up_after: int = 16

    def __post_init__(self) -> None:
        for name in ("samples", "wanted", "in_flight", "attempts", "give_up_after"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.min_samples is not None and not 1 <= self.min_samples <= self.samples:
            raise ValueError(f"min_samples must be between 1 and samples={self.samples}, not {self.min_samples}")
        if self.max_lag < 0:
            raise ValueError(f"max_lag must not be negative, not {self.max_lag}")


class Batch(msgspec.Struct, kw_only=True):
    """``groups``: informative, at most K of them. ``complete`` is false when there are fewer, and ``why`` says so.

    ``uninformative``: groups dropped since their rewards were equal. ``incomplete``: groups that could not be finished.
    ``stale``: samples dropped for their age. ``started``, ``finished``, ``cancelled``: rollouts since the last batch.
    ``carried``: rollouts that go on. ``troubles`` counts failed attempts by kind.
    """

    step: int
    groups: list[Group]
    complete: bool
    why: str = ""
    uninformative: int = 0
    incomplete: list[Group] = []
    stale: int = 0
    started: int = 0
    finished: int = 0
    cancelled: int = 0
    carried: int = 0
    troubles: Counter[str] = msgspec.field(default_factory=Counter)


class Stalled(ClientError):  # noqa: N818 - says what happened
    """Groups cannot be finished, one after the other: something is broken that going on will not mend."""

    def __init__(self, groups: list[Group]) -> None:
        troubles: Counter[str] = Counter()
        for group in groups:
            troubles += group.troubles()
        said = ", ".join(f"{kind} ({count})" for kind, count in troubles.most_common(5))
        super().__init__(f"the last {len(groups)} groups could not be finished: {said or 'no sample succeeded'}")
        self.groups = groups


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one sample of a group, begun at the trainer's ``step``."""

    job_id: str
    group: Group
    sample: int
    step: int


class Roster:
    """Raises :class:`Stalled` from :meth:`book` when group after group cannot be finished."""

    def __init__(
        self,
        prompts: Iterable[Prompt],
        settings: CollectorSettings,
        *,
        informative: Informative = rewards_differ,
        run_id: str | None = None,
    ) -> None:
        self._prompts: Iterator[Prompt] = iter(prompts)
        self._settings = settings
        self._informative = informative
        self._run_id = run_id or uuid.uuid4().hex[:8]
        self._serial = 0
        self._dry = False
        self._started: dict[Group, None] = {}  # a dict for its order: the same run goes the same way
        self._todo: deque[tuple[Group, int]] = deque()
        self._bad: list[Group] = []
        self._concluded = 0
        self.step = 0
        self.ready: list[Group] = []
        self.batch = Batch(step=0, groups=[], complete=False)

    @property
    def spent(self) -> bool:
        """Whether the batch has cost as many groups as it may."""
        return self._settings.max_groups is not None and self._concluded >= self._settings.max_groups

    @property
    def over(self) -> bool:
        """No prompt is left, nor anything of those that were that has not been told."""
        return self._dry and not (self._started or self.ready or self._concluded)

    def next_place(self) -> Place | None:
        """What to roll out next: first what started groups still lack, then a new prompt's; ``None``: nothing."""
        if not self._todo and not self._begin_group():
            return None
        group, sample = self._todo.popleft()
        self._serial += 1
        self.batch.started += 1
        return Place(job_id=f"{group.group_id}-{sample}.{self._serial}", group=group, sample=sample, step=self.step)

    def book(self, place: Place, attempt: Attempt) -> None:
        """An attempt has ended by itself."""
        self.batch.finished += 1
        group = place.group
        if attempt.trainable and attempt.step < self.oldest_allowed:  # it ended while the step moved on
            self.batch.stale += 1
            self._todo.append((group, place.sample))
            return
        if attempt.trainable:
            group.kept[place.sample] = attempt
        else:
            group.failed.append((place.sample, attempt))
            self.batch.troubles[attempt.trouble] += 1
            if group.tries(place.sample) < self._settings.attempts:
                self._todo.appendleft((group, place.sample))
            else:
                group.given_up.add(place.sample)
        if group.ended:
            self._conclude(group)

    def put_back(self, place: Place) -> None:
        """An attempt was cancelled: no fault of its own, so it does not count as one."""
        self.batch.cancelled += 1
        self.batch.stale += place.step < self.oldest_allowed
        self._todo.appendleft((place.group, place.sample))

    def begin(self, step: int) -> None:
        """The trainer's next step. Finished samples that are too old for it are dropped, to be rolled out anew."""
        self.step = step
        oldest = self.oldest_allowed
        for group in [*self.ready, *self._started]:
            for sample in [sample for sample, attempt in group.kept.items() if attempt.step < oldest]:
                del group.kept[sample]
                self.batch.stale += 1
                self._todo.append((group, sample))
            if not group.ended and group in self.ready:
                self.ready.remove(group)
                self._started[group] = None

    @property
    def oldest_allowed(self) -> int:
        return self.step - self._settings.max_lag

    def take(self, *, carried: int) -> Batch:
        """Hand out what is ready, oldest first, and begin to count anew."""
        wanted, batch = self._settings.wanted, self.batch
        self.ready.sort(key=lambda group: group.oldest_step or 0)
        batch.step, batch.carried = self.step, carried
        batch.groups, self.ready = self.ready[:wanted], self.ready[wanted:]
        batch.complete = len(batch.groups) == wanted
        if not batch.complete:
            batch.why = f"{self._concluded} groups ended" if self.spent else "the prompts are used up"
        self.batch, self._concluded = Batch(step=self.step, groups=[], complete=False), 0
        return batch

    def _begin_group(self) -> bool:
        prompt = None if self._dry else next(self._prompts, None)
        if prompt is None:
            self._dry = True
            return False
        self._serial += 1
        group = Group(f"{prompt.prompt_id}@{self._run_id}.{self._serial}", prompt, self._settings.samples)
        self._started[group] = None
        self._todo.extend((group, sample) for sample in range(group.size))
        return True

    def _conclude(self, group: Group) -> None:
        del self._started[group]
        self._concluded += 1
        least = self._settings.samples if self._settings.min_samples is None else self._settings.min_samples
        if len(group.kept) < least:
            self.batch.incomplete.append(group)
            self._bad.append(group)
            if len(self._bad) >= self._settings.give_up_after:
                raise Stalled(self._bad)
            return
        self._bad.clear()
        if self._informative(group):
            self.ready.append(group)
        else:
            self.batch.uninformative += 1
