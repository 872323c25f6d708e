"""Figures keep to one style, leave matplotlib as it was, and name what they show."""

from __future__ import annotations

import itertools

import matplotlib as mpl
import numpy as np
import pytest

from curvi import plots
from curvi.diagnostics._summary import names_of
from curvi.plots._style import COLOURS, LINES, MARKERS, house_style
from curvi.targets import Labels

pytestmark = pytest.mark.float64_only


def lightness(colour: str) -> float:
    """How bright a colour prints in grey, from 0 to 1."""
    red, green, blue = mpl.colors.to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_neighbours_in_the_palette_differ_in_grey_or_in_line_and_marker():
    for first, second in itertools.pairwise(COLOURS):
        assert abs(lightness(first) - lightness(second)) > 0.05
    assert len(set(LINES)) == len(COLOURS)
    assert len(set(MARKERS)) == len(MARKERS)


def test_a_figure_leaves_the_settings_of_matplotlib_as_they_were():
    before = dict(mpl.rcParams)

    @house_style
    def draw():
        return mpl.rcParams["axes.grid"]

    assert draw() is True
    assert dict(mpl.rcParams) == before


def test_effects_are_sorted_and_written_as_they_are():
    mean, sd = np.array([[0.1, -3.0, 1.0]]), np.full((1, 3), 0.2)
    figure = plots.plot_effects(mean, sd, names=["a", "$b$", "c"])
    texts = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert texts == [r"\$b\$", "c", "a"]
    assert figure.axes[0].yaxis_inverted()


def test_the_sheet_of_a_plane_has_quantiles_on_its_axes_the_second_from_below():
    figure = plots.plot_sheet(np.zeros((4, 4, 6)), (2, 3), quantiles=True)
    axis = figure.axes[0]
    across = [float(text.get_text()) for text in axis.get_xticklabels()]
    down = [float(text.get_text()) for text in axis.get_yticklabels()]
    np.testing.assert_allclose(across, [0.12, 0.38, 0.62, 0.88], atol=0.01)
    np.testing.assert_allclose(down, across[::-1], atol=0.01)


def test_rolls_run_to_the_right_and_leave_out_what_is_blank_in_all():
    notes = np.zeros((7, 20))
    notes[:, 9], notes[0, 12] = 1, 1
    figure = plots.plot_rolls([notes, notes[:3], notes], ["a", "$b$", "c"])
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), notes.T)
    assert figure.axes[0].get_ylim() == (7.5, 13.5)
    assert figure.axes[1].get_title() == r"\$b\$"
    assert not figure.axes[3].axison


def test_pictures_have_a_transparent_ground_and_drawings_a_white_one():
    pictures = plots.plot_images({"rows": np.zeros((2, 4))}, (2, 2))
    drawing = plots.plot_coefficients(np.ones((1, 3)))
    assert pictures.get_facecolor()[3] == 0
    assert drawing.get_facecolor() == (1, 1, 1, 1)


def test_values_along_a_named_axis_stand_in_place_of_its_index():
    labels = Labels(dims={"level": ("region",), "both": ("region", "year")},
                    coords={"region": ["north", "south"]})  # fmt: skip
    tree = {"both": np.zeros((2, 1)), "level": np.zeros(2), "x": np.zeros(1)}
    assert names_of(tree, None, labels) == [
        "both[north, 0]", "both[south, 0]", "level[north]", "level[south]", "x[0]",
    ]  # fmt: skip
    assert names_of({"level": np.zeros(2)}, None) == ["level[0]", "level[1]"]
    assert names_of({"level": np.zeros(2)}, ["a", "b"], labels) == ["a", "b"]
