import unittest

from taskgraph import CycleError, TaskGraph, UnknownTaskError


def diamond():
    graph = TaskGraph()
    graph.add("d", after=["b", "c"], cost=1)
    graph.add("b", after=["a"], cost=5)
    graph.add("c", after=["a"], cost=2)
    graph.add("a", cost=3)
    return graph


class GraphTest(unittest.TestCase):
    def test_order(self):
        self.assertEqual(diamond().order(), ["a", "b", "c", "d"])

    def test_names_break_ties(self):
        graph = TaskGraph()
        for name in "zxy":
            graph.add(name)
        self.assertEqual(graph.order(), ["x", "y", "z"])

    def test_cycle(self):
        graph = TaskGraph()
        graph.add("a", after=["c"])
        graph.add("b", after=["a"])
        graph.add("c", after=["b"])
        with self.assertRaisesRegex(CycleError, "a -> c -> b -> a"):
            graph.order()

    def test_unknown(self):
        graph = TaskGraph()
        graph.add("a", after=["nothing"])
        with self.assertRaisesRegex(UnknownTaskError, "'a' comes after 'nothing', which does not exist"):
            graph.order()

    def test_twice(self):
        graph = TaskGraph()
        graph.add("a")
        with self.assertRaisesRegex(ValueError, "added twice"):
            graph.add("a")

    def test_upstream_and_subgraph(self):
        graph = diamond()
        self.assertEqual(graph.upstream("b"), {"a", "b"})
        self.assertEqual(graph.subgraph(["b", "d"]).order(), ["b", "d"])

    def test_critical_path(self):
        self.assertEqual(diamond().critical_path(), ["a", "b", "d"])
        self.assertEqual(diamond().to_end(), {"a": 9.0, "b": 6.0, "c": 3.0, "d": 1.0})


if __name__ == "__main__":
    unittest.main()
