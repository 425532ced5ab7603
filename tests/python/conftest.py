"""Pools of ranks, shared by all tests of a session."""

import pytest
from ranks import Pool


class Pools:
    def __init__(self) -> None:
        self.kept: dict[tuple, Pool] = {}

    def __call__(self, ranks: int, **env: str) -> Pool:
        """The session's pool of this size and environment."""
        key = (ranks, *sorted(env.items()))
        if key not in self.kept or not self.kept[key].alive:
            self.kept[key] = Pool(ranks, **env)
        return self.kept[key]

    def close(self) -> None:
        for pool in self.kept.values():
            if pool.alive:
                pool.close()


@pytest.fixture(scope="session")
def pools():
    made = Pools()
    yield made
    made.close()
