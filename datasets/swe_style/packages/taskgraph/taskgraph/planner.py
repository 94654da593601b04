"""Which worker does what when: list scheduling by the longest way to the end."""

import heapq
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Slot:
    """A task on a worker."""

    task: str
    worker: int
    start: float
    end: float


@dataclass
class Plan:
    """All slots, by start."""

    slots: list = field(default_factory=list)

    @property
    def length(self):
        """When the last task ends."""
        return max((slot.end for slot in self.slots), default=0.0)

    def of_worker(self, worker):
        """The slots of one worker, in order."""
        return [slot for slot in self.slots if slot.worker == worker]

    def utilization(self, workers):
        """Share of the workers' time that is used."""
        busy = sum(slot.end - slot.start for slot in self.slots)
        return busy / (workers * self.length) if self.length else 0.0

    def chart(self, scale=1.0):
        """A text picture: one line per worker, one character per `scale` of time."""
        lines = []
        for worker in sorted({slot.worker for slot in self.slots}):
            line = ""
            for slot in self.of_worker(worker):
                line = line.ljust(round(slot.start / scale), ".")
                line += slot.task[:1] * max(1, round((slot.end - slot.start) / scale))
            lines.append(f"{worker}: {line}")
        return "\n".join(lines)


def plan(graph, workers):
    """Assign the tasks of a graph to a number of equal workers."""
    if workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    priority = graph.to_end()
    missing = {name: len(graph.dependencies(name)) for name in graph.names()}
    ready = [(-priority[name], name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    idle = list(range(workers))
    running = []
    now = 0.0
    result = Plan()
    while ready or running:
        while ready and idle:
            _, name = heapq.heappop(ready)
            worker = heapq.heappop(idle)
            end = now + graph.cost(name)
            result.slots.append(Slot(name, worker, now, end))
            heapq.heappush(running, (end, worker, name))
        now = running[0][0]
        # Everything that ends now is taken together, so that the choice of the next task sees all of it.
        while running and running[0][0] == now:
            _, worker, name = heapq.heappop(running)
            heapq.heappush(idle, worker)
            for dependent in graph.dependents(name):
                missing[dependent] -= 1
                if missing[dependent] == 0:
                    heapq.heappush(ready, (-priority[dependent], dependent))
    return result
