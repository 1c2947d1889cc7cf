"""The model of stages: who waits for whom, in the long run and at the start."""

import pytest

from kernels.lab.drawing.waiting import busy, steps, waiting


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
