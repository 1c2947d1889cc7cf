"""The model of stages: who waits for whom, in the long run and at the start."""

from itertools import pairwise

import pytest

from kernels.lab.drawing.waiting import (
    busy,
    products_share,
    steps,
    taking_turns,
    turns,
    waiting,
)


@pytest.mark.parametrize(("stages", "a_step"), [(1, 4.0), (2, 2.0), (3, 4 / 3), (4, 1.0), (8, 1.0)])
def test_in_the_long_run_a_step_takes_the_larger_of_two_times(stages, a_step):
    told = steps(400, stages, copy=3.0, product=1.0)
    took = (told[-1].ends - told[199].ends) / 200
    assert took == pytest.approx(a_step, rel=0.02)
    assert busy(told) == pytest.approx(1 / a_step, rel=0.02)


def test_nothing_begins_before_what_it_needs():
    told = steps(20, 3, copy=2.5, product=1.0)
    for number, step in enumerate(told):
        assert step.full == step.asked + 2.5
        assert step.begins >= step.full
        assert step.ends == step.begins + 1.0
        if number >= 3:
            assert step.asked >= told[number - 3].ends  # the stage is empty again
        if number:
            assert step.begins >= told[number - 1].ends


def test_what_is_no_model_is_refused():
    for wrong in ((4, 0, 1.0, 1.0), (4, 2, 0.0, 1.0), (4, 2, 1.0, -1.0)):
        with pytest.raises(ValueError, match="one stage or more, and times above 0"):
            steps(*wrong)
    assert busy([]) == 0.0


def test_the_picture_says_the_share_and_names_every_stage():
    told = {"1 stage": steps(5, 1, 3.0, 1.0), "4 stages": steps(5, 4, 3.0, 1.0)}
    figure = waiting(told, "A title")
    panels = figure.axes
    assert [axes.get_title("left").partition(":")[0] for axes in panels] == list(told)
    assert f"{busy(told['1 stage']):.0%}" in panels[0].get_title("left")
    labels = [label.get_text() for label in panels[1].get_yticklabels()]
    assert labels == ["stage 0", "stage 1", "stage 2", "stage 3", "products"]
    assert panels[0].get_xlim() == panels[1].get_xlim()


@pytest.mark.parametrize(
    ("groups", "softmax", "ahead", "share"),
    [
        (1, 2.0, False, 1 / 2),  # products 2 of 4
        (1, 2.0, True, 2 / 3),  # a product runs beside the softmax
        (2, 2.0, True, 1.0),
        (1, 1.0, False, 2 / 3),
        (1, 1.0, True, 1.0),
        (1, 4.0, True, 2 / 5),
        (2, 4.0, True, 4 / 5),
        (3, 4.0, True, 1.0),
    ],
)
def test_in_the_long_run_products_fill_what_the_softmax_leaves(groups, softmax, ahead, share):
    told = turns(2000, groups, 1.0, softmax, 1.0, ahead)
    assert products_share(told) == pytest.approx(share, rel=2e-3)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_a_group_takes_nothing_before_it_is_there(groups, ahead):
    told = turns(6, groups, 1.0, 1.7, 0.8, ahead)
    for group in told:
        at = {(one.kind, one.tile): one for one in group}
        assert len(at) == len(group) == 18
        for tile in range(6):
            scores, softmax, sums = (at[kind, tile] for kind in ("scores", "softmax", "sums"))
            assert softmax.begins == scores.ends
            assert sums.begins >= softmax.ends
            assert sums.ends - sums.begins == pytest.approx(0.8)
            if tile:  # the softmax is the group's own: one after the other
                assert softmax.begins >= at["softmax", tile - 1].ends
    products = sorted(one[2:] for group in told for one in group if one.kind != "softmax")
    assert all(after[0] >= before[1] for before, after in pairwise(products))


def test_turns_that_are_none_are_refused():
    for wrong in ((0, 1, 1.0, 1.0, 1.0), (1, 0, 1.0, 1.0, 1.0), (1, 1, 1.0, 0.0, 1.0)):
        with pytest.raises(ValueError, match="one tile and one group or more"):
            turns(*wrong, ahead=True)
    assert products_share([[]]) == 0.0


def test_the_picture_of_turns_has_a_line_for_each_group_and_for_the_tensor_cores():
    told = {"one": turns(3, 1, 1, 2, 1, True), "two": turns(3, 2, 1, 2, 1, True)}
    figure = taking_turns(told, "A title")
    for axes, (name, groups) in zip(figure.axes, told.items(), strict=True):
        assert axes.get_title("left").startswith(f"{name}: ")
        assert f"{products_share(groups):.0%}" in axes.get_title("left")
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [*(f"group {one}" for one in range(len(groups))), "tensor cores"]
        assert len(axes.patches) == 15 * len(groups)  # a product is in two lines
