"""Tests that the examples in the modules and in the README give the results that they show."""

import doctest
import pathlib
import unittest

from epicepoch import options, timestamp

from .thread import NodeThread

README = pathlib.Path(__file__).parents[1] / "README.md"


class Documents(unittest.TestCase):
    def test_the_examples_of_the_modules_give_what_they_say(self) -> None:
        for module in (options, timestamp):
            tried = doctest.testmod(module)
            self.assertGreater(tried.attempted, 0)
            self.assertEqual(tried.failed, 0)

    def test_the_readme_gives_what_it_says(self) -> None:
        node = NodeThread(self)
        node.on_hello = lambda: node.welcome(node, cluster_name="epicepoch")
        text = README.read_text().replace('"localhost:8881"', repr(node.addr))
        parts = text.replace("```", "\n").replace("localhost:888", "127.0.0.1:")
        example = doctest.DocTestParser().get_doctest(parts, {}, "README.md", str(README), 0)
        tried = doctest.DocTestRunner().run(example)
        self.assertGreater(tried.attempted, 15)
        self.assertEqual(tried.failed, 0)
