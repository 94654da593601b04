import unittest

from taskgraph import Runner, TaskGraph, plan
from tests.test_graph import diamond


class PlanTest(unittest.TestCase):
    def test_one_worker(self):
        self.assertEqual(plan(diamond(), 1).length, 11.0)

    def test_two_workers(self):
        result = plan(diamond(), 2)
        self.assertEqual(result.length, 9.0)
        self.assertAlmostEqual(result.utilization(2), 11 / 18)

    def test_chart(self):
        self.assertEqual(plan(diamond(), 2).chart(), "0: aaabbbbbd\n1: ...cc")

    def test_no_workers(self):
        with self.assertRaisesRegex(ValueError, "at least one worker, got 0"):
            plan(diamond(), 0)


class RunnerTest(unittest.TestCase):
    def test_values_are_handed_on(self):
        actions = {
            "a": lambda _: 1,
            "b": lambda inputs: inputs["a"] + 1,
            "c": lambda inputs: inputs["a"] + 2,
            "d": lambda inputs: inputs["b"] * inputs["c"],
        }
        self.assertEqual(Runner(diamond(), actions).run()["d"].value, 6)

    def test_targets(self):
        runner = Runner(diamond(), {name: lambda _: name for name in "abcd"})
        self.assertEqual(sorted(runner.run(["c"])), ["a", "c"])

    def test_failure_skips_direct_dependents(self):
        graph = TaskGraph()
        graph.add("a")
        graph.add("b", after=["a"])

        def fail(_):
            raise RuntimeError("broken")

        outcomes = Runner(graph, {"a": fail, "b": lambda _: 1}).run()
        self.assertEqual((outcomes["a"].state, outcomes["b"].state), ("failed", "skipped"))
        self.assertEqual(outcomes["b"].reason, "needs a")

    def test_missing_action(self):
        with self.assertRaisesRegex(ValueError, "no action for b, c, d"):
            Runner(diamond(), {"a": None})


if __name__ == "__main__":
    unittest.main()
