import unittest

from taskgraph import Runner, TaskGraph, plan


class FailureTest(unittest.TestCase):
    def chain(self):
        graph = TaskGraph()
        graph.add("a")
        graph.add("b", after=["a"])
        graph.add("c", after=["b"])
        graph.add("free")
        return graph

    def test_skips_spread(self):
        def fail(_):
            raise RuntimeError("broken")

        ran = []
        actions = {"a": fail, "b": ran.append, "c": ran.append, "free": lambda _: "yes"}
        outcomes = Runner(self.chain(), actions).run()
        self.assertEqual([outcomes[n].state for n in ("a", "b", "c", "free")], ["failed", "skipped", "skipped", "done"])
        self.assertEqual((outcomes["c"].reason, ran), ("needs b", []))

    def test_retries(self):
        calls = []

        def flaky(_):
            calls.append(1)
            if len(calls) < 3:
                raise RuntimeError("not yet")
            return "ok"

        graph = TaskGraph()
        graph.add("a")
        self.assertEqual(Runner(graph, {"a": flaky}, retries=2).run()["a"].value, "ok")
        calls.clear()
        self.assertEqual(Runner(graph, {"a": flaky}, retries=1).run()["a"].state, "failed")
        self.assertEqual(len(calls), 2)


class CycleTest(unittest.TestCase):
    def test_only_the_cycle_is_named(self):
        graph = TaskGraph()
        graph.add("a", after=["b"])
        graph.add("b", after=["c"])
        graph.add("c", after=["d"])
        graph.add("d", after=["b"])
        self.assertEqual(graph.find_cycle(), ["b", "c", "d", "b"])

    def test_shared_tasks_are_no_cycle(self):
        graph = TaskGraph()
        graph.add("app", after=["x", "y"])
        graph.add("x", after=["base"])
        graph.add("y", after=["base", "x"])
        graph.add("base")
        self.assertIsNone(graph.find_cycle())
        self.assertEqual(graph.order(), ["base", "x", "y", "app"])

    def test_itself(self):
        graph = TaskGraph()
        graph.add("a", after=["a"])
        self.assertEqual(graph.find_cycle(), ["a", "a"])


class PlanTest(unittest.TestCase):
    def test_the_longest_way_goes_first(self):
        graph = TaskGraph()
        graph.add("a1", cost=2)
        graph.add("a2", cost=2)
        graph.add("z", cost=2)
        graph.add("after-z", after=["z"], cost=6)
        result = plan(graph, 2)
        self.assertEqual(result.length, 8.0)
        self.assertEqual({slot.task for slot in result.slots if slot.start == 0}, {"z", "a1"})

    def test_dependencies_are_respected(self):
        graph = TaskGraph()
        for number in range(12):
            graph.add(f"t{number:02}", after=[f"t{k:02}" for k in range(number) if number % (k + 2) == 0], cost=1 + number % 3)
        for workers in (1, 2, 3, 5):
            slots = {slot.task: slot for slot in plan(graph, workers).slots}
            for name, slot in slots.items():
                for before in graph.dependencies(name):
                    self.assertLessEqual(slots[before].end, slot.start)

    def test_double_dependencies_count_once(self):
        graph = TaskGraph()
        graph.add("a")
        graph.add("b", after=["a", "a"])
        self.assertEqual(graph.order(), ["a", "b"])
        self.assertEqual(len(plan(graph, 1).slots), 2)


if __name__ == "__main__":
    unittest.main()
