"""The graph: tasks, dependencies, orders, cycles."""

import heapq


class CycleError(ValueError):
    """Tasks that wait for each other."""

    def __init__(self, cycle):
        super().__init__("tasks depend on each other: " + " -> ".join(cycle))
        self.cycle = cycle


class UnknownTaskError(KeyError):
    """A dependency on a task that was never added."""

    def __str__(self):
        return self.args[0]


class TaskGraph:
    """Tasks by name, each with a cost and the names of the tasks that come before it."""

    def __init__(self):
        self._before = {}
        self._cost = {}

    def add(self, name, after=(), cost=1.0):
        """Add a task; what it comes after may be added later."""
        if name in self._before:
            raise ValueError(f"the task {name!r} was added twice")
        if cost < 0:
            raise ValueError(f"the cost of {name!r} is {cost}, it must not be negative")
        self._before[name] = list(dict.fromkeys(after))
        self._cost[name] = float(cost)

    def __contains__(self, name):
        return name in self._before

    def __len__(self):
        return len(self._before)

    def names(self):
        """All tasks in the order in which they were added."""
        return list(self._before)

    def cost(self, name):
        """The cost of a task."""
        return self._cost[name]

    def dependencies(self, name):
        """Tasks that come directly before a task."""
        return list(self._before[name])

    def dependents(self, name):
        """Tasks that come directly after a task, by name."""
        return sorted(task for task, before in self._before.items() if name in before)

    def check(self):
        """Raise if a dependency is unknown or the tasks cannot be ordered."""
        for task, before in self._before.items():
            for name in before:
                if name not in self._before:
                    raise UnknownTaskError(f"the task {task!r} comes after {name!r}, which does not exist")
        cycle = self.find_cycle()
        if cycle:
            raise CycleError(cycle)

    def find_cycle(self):
        """The names along a cycle, the first one repeated at the end; None if there is none."""
        state = {}
        for root in sorted(self._before):
            if root in state:
                continue
            path = [root]
            state[root] = "open"
            stack = [iter(sorted(self._before[root]))]
            while stack:
                name = next(stack[-1], None)
                if name is None:
                    stack.pop()
                    state[path.pop()] = "done"
                elif state.get(name) == "open":
                    return path[path.index(name) :] + [name]
                elif name not in state and name in self._before:
                    state[name] = "open"
                    path.append(name)
                    stack.append(iter(sorted(self._before[name])))
        return None

    def order(self):
        """All tasks so that each comes after its dependencies; ties are broken by name."""
        self.check()
        missing = {name: len(before) for name, before in self._before.items()}
        ready = [name for name, count in missing.items() if count == 0]
        heapq.heapify(ready)
        result = []
        while ready:
            name = heapq.heappop(ready)
            result.append(name)
            for dependent in self.dependents(name):
                missing[dependent] -= 1
                if missing[dependent] == 0:
                    heapq.heappush(ready, dependent)
        return result

    def upstream(self, *names):
        """Everything that the given tasks need, themselves included."""
        found = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in self._before:
                raise UnknownTaskError(f"there is no task {name!r}")
            if name not in found:
                found.add(name)
                stack.extend(self._before[name])
        return found

    def subgraph(self, names):
        """A graph of some tasks; dependencies on others are dropped."""
        keep = set(names)
        result = TaskGraph()
        for name, before in self._before.items():
            if name in keep:
                result.add(name, [b for b in before if b in keep], self._cost[name])
        return result

    def to_end(self):
        """For each task the cost of the longest chain that starts with it."""
        result = {}
        for name in reversed(self.order()):
            result[name] = self._cost[name] + max((result[d] for d in self.dependents(name)), default=0.0)
        return result

    def critical_path(self):
        """The tasks of the longest chain, in order."""
        lengths = self.to_end()
        path = []
        candidates = [name for name in self._before if not self._before[name]]
        while candidates:
            path.append(min(candidates, key=lambda name: (-lengths[name], name)))
            candidates = self.dependents(path[-1])
        return path
