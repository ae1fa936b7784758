"""What hypothesis draws its examples from."""

from hypothesis.internal.conjecture import providers


def examples_of_the_tree_alone() -> None:
    """Keep hypothesis from trying the constants of all modules that are loaded.

    The tests that ran before would change the examples, and a module that is loaded while an example runs would make
    its next run another one, which hypothesis reports as FlakyStrategyDefinition.
    """
    providers._get_local_constants = lambda: providers._local_constants
