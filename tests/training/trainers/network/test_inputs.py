"""Inputs of a model on a table: standardised numbers and one-hot categories, as scikit-learn computes them."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from small_tables import COLOURS, described, on_table, plain_steps, values

from training.data.images.augmentation import Augmentation
from training.errors import SettingError
from training.records import TableSchema
from training.trainers.network.inputs import TableEncoder, inputs_of, model_shape


def encoded(inputs: np.ndarray) -> np.ndarray:
    table = described(values()).table
    assert table is not None
    return np.asarray(TableEncoder(table)(torch.from_numpy(inputs)))


def test_features_are_those_of_scikit_learn() -> None:
    learned, given = values(), values(30, seed=1)
    numbers, colours = [0, 2], np.arange(len(COLOURS))
    scaled = (
        StandardScaler().fit(learned[:, numbers].astype(float)).transform(given[:, numbers].astype(float))
    )
    hot = OneHotEncoder(categories=[colours], sparse_output=False).fit_transform(given[:, [1]])
    wanted = np.column_stack([scaled[:, 0], hot, scaled[:, 1]])
    # A float32 mean of 19,000 days is rounded by up to 0.001 days, of a standard deviation of 40 days.
    np.testing.assert_allclose(encoded(given), wanted, atol=1e-4)
    assert np.ptp(wanted[:, 0]) > 1


def test_missing_numbers_are_the_mean_and_missing_or_unknown_categories_are_no_category() -> None:
    inputs = np.array(
        [[np.nan, np.nan, np.nan], [5, 3, 19_000], [5, -1, 19_000], [5, 0.5, 19_000]], np.float32
    )
    features = encoded(inputs)
    assert np.isfinite(features).all()
    assert (features[0] == 0).all()
    assert (features[:, 1:4] == 0).all()


def test_the_model_gets_the_number_of_features() -> None:
    version = described(values())
    assert model_shape(version) == (encoded(values()).shape[1],) == (5,)


def test_a_table_without_a_feature_is_refused() -> None:
    version = described(values())
    assert version.table is not None
    empty = version.table.columns[1].model_copy(update={"categories": ()})
    with pytest.raises(SettingError, match="no column of the table has a value"):
        model_shape(version.model_copy(update={"table": TableSchema(target="price", columns=(empty,))}))


def test_an_exported_encoder_takes_any_number_of_rows() -> None:
    table = described(values()).table
    assert table is not None
    encoder = TableEncoder(table)
    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(encoder, (torch.from_numpy(values(4)),), dynamic_shapes=(rows,)).module()
    for count in (1, 3, 700):
        given = torch.from_numpy(values(count, seed=count))
        given[0] = torch.nan
        assert torch.equal(program(given), encoder(given))


def test_augmentation_of_a_table_is_refused() -> None:
    version = described(values())
    recipe = on_table(version, augmentation=Augmentation(shift=1))
    with pytest.raises(SettingError, match="recipe small: augmentation changes images"):
        inputs_of(recipe, version, plain_steps(), torch.device("cpu"))
