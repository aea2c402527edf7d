"""What a report draws from the models of clusters of examples."""

import io

import numpy as np

from corymb.report.drawn import as_png_bytes, drawn_clusters, in_plane, mosaic
from tests.report.reported import examples_run, runs


def test_the_plane_keeps_groups_apart_however_noisy_other_features_are():
    rng = np.random.default_rng(0)
    groups = {j: rng.normal(size=(40, 9)) * [1, 1, *[3] * 7] + np.eye(9)[j] * 12 for j in (0, 1)}
    flat = in_plane(groups, scale=False)
    assert [rows.shape for rows in flat.values()] == [(40, 2)] * 2
    gap = abs(flat[0][:, 0].mean() - flat[1][:, 0].mean())
    assert gap > 5 * max(rows[:, 0].std() for rows in flat.values())


def test_few_features_stay_as_they_are():
    two = {0: np.ones((3, 2)), 2: np.zeros((3, 2))}
    assert in_plane(two, scale=True) is two
    one = in_plane({0: np.ones((3, 1)), 2: np.zeros((3, 1))}, scale=True)
    assert one[2].tolist() == [[0, -1]] * 3


def test_a_feature_that_never_varies_does_no_harm():
    rng = np.random.default_rng(0)
    groups = {j: np.column_stack([rng.normal(size=(30, 2)) + 9 * j, np.ones(30)]) for j in (0, 1)}
    assert all(np.isfinite(rows).all() for rows in in_plane(groups, scale=True).values())


def test_pictures_are_put_into_one():
    from matplotlib import image

    groups = {0: np.zeros((2, 12)), 1: np.full((2, 12), 2.0)}
    pixels = mosaic(groups, (3, 2, 2))
    assert pixels.shape == (5, 5, 3)
    assert pixels[:2, :2].max() == 0
    assert pixels[3:].min() == 255
    grey = mosaic({0: np.full((1, 4), 0.5)}, (1, 2, 2))
    read = image.imread(io.BytesIO(as_png_bytes(grey)))
    assert np.allclose(read[..., :3], 128 / 255, atol=1e-3)


def test_only_clusters_with_examples_are_drawn_and_none_of_other_runs():
    run = examples_run()
    assert drawn_clusters(run) == [label for label, size in enumerate(run.points) if size]
    assert drawn_clusters(runs()[0]) == []
