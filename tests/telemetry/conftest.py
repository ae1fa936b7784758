from tests.support.clients import nothing_is_left, pytest_asyncio_loop_factories, stage, watched

__all__ = ["nothing_is_left", "pytest_asyncio_loop_factories", "stage", "watched"]
