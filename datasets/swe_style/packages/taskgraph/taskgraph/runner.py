"""Runs the tasks of a graph one after the other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What became of a task: `done` with a value, `failed` with an error, or `skipped` with the reason."""

    state: str
    value: object = None
    error: object = None
    reason: str = ""


class Runner:
    """Calls `actions[name](results of its dependencies)` for each task, retrying up to `retries` times."""

    def __init__(self, graph, actions, retries=0):
        absent = sorted(set(graph.names()) - set(actions))
        if absent:
            raise ValueError(f"no action for {', '.join(absent)}")
        self.graph = graph
        self.actions = actions
        self.retries = retries
        self.attempts = {}

    def run(self, targets=None):
        """Outcomes by task, for the targets and what they need, or for everything."""
        names = set(self.graph.names()) if targets is None else self.graph.upstream(*targets)
        outcomes = {}
        for name in self.graph.order():
            if name in names:
                outcomes[name] = self._outcome(name, outcomes)
        return outcomes

    def _outcome(self, name, outcomes):
        """Run one task, unless something that it needs did not work."""
        before = self.graph.dependencies(name)
        broken = [task for task in before if outcomes[task].state != "done"]
        if broken:
            return Outcome("skipped", reason=f"needs {', '.join(sorted(broken))}")
        inputs = {task: outcomes[task].value for task in before}
        for attempt in range(1, self.retries + 2):
            self.attempts[name] = attempt
            try:
                return Outcome("done", value=self.actions[name](inputs))
            except Exception as error:  # whatever the action raises belongs to the outcome
                last = error
        return Outcome("failed", error=last)
