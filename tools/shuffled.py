"""A pytest plugin: the same tests in another order, the same order in every worker."""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, required=True, metavar="SEED", help="the seed of the order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    random.Random(config.getoption("order")).shuffle(items)
