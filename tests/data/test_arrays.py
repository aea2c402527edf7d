import numpy as np
import pytest
import torch
from scipy import sparse

import corymb
from corymb.core.pixels import as_numbers
from corymb.data import FederatedDataset
from corymb.settings import InvalidInput

from_arrays = FederatedDataset.from_arrays
X = np.arange(8, dtype=np.float64).reshape(4, 2)
Y = np.array([0, 1, 1, 0])


def test_rows_go_to_their_clients_in_order():
    data = from_arrays(X, Y, [10, 9, 10, 9], test=0)
    assert data.names == ("9", "10")
    assert data.train.of(1)[0].tolist() == [[0, 1], [4, 5]]
    assert data.train.y.tolist() == [1, 0, 0, 1]
    assert data.train.x.dtype == torch.float32
    assert data.classes == ("0", "1")
    assert len(data.test.y) == 0


def test_whole_number_ids_name_clients_as_text_does(tmp_path):
    for ids, numbered in (([7, 5, 6, 5], True), ([9, 10, 12, 9], False), ([-1, 3, 3, -2], False), ([10**17] * 4, True)):
        data, text = from_arrays(X, Y, ids, test=0), from_arrays(X, Y, [str(one) for one in ids], test=0)
        assert data.names == text.names
        assert data.names.numbered == text.names.numbered == numbered
        assert data.fingerprint() == text.fingerprint()
        assert FederatedDataset.load(data.save(tmp_path / "data.safetensors")).names == data.names
    most = np.array([2**64 - 1, 2**64 - 2, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    assert from_arrays(X, Y, most, test=0).names == (str(2**64 - 2), str(2**64 - 1))


def test_without_test_examples_all_offsets_are_one_zero():
    data = from_arrays(X, Y, [0, 1, 2, 3], test=0)
    assert data.test.offsets.tolist() == [0] * 5
    assert data.test.offsets.untyped_storage().nbytes() == 8


def test_names_and_their_order():
    assert from_arrays(X, Y, ["10", "9", "9", "10"], test=0).names == ("9", "10")
    assert from_arrays(X, Y, ["b", "a", "a10", "a9"], test=0).names == ("a", "a9", "a10", "b")
    assert from_arrays(X, Y, np.array(["b", "a", "a", "b"], dtype=object), test=0).names == ("a", "b")
    named = from_arrays(X, Y, [1, 0, 0, 1], names=["zoe", "amy"], test=0)
    assert named.names == ("zoe", "amy")
    assert named.train.of(0)[1].tolist() == [1, 1]
    assert from_arrays(X, Y, ["b", "a", "a", "b"], names=["b", "a"], test=0).names == ("b", "a")


def test_clients_may_be_given_with_their_rows():
    items = {"b": [3, 0], "a": np.array([1])}
    data = from_arrays(X, Y, items, test=np.array([True, False, False, False]))
    assert data.names == ("a", "b")
    assert data.train.x.tolist() == [[2, 3], [6, 7]]
    assert data.test.x.tolist() == [[0, 1]]
    assert from_arrays(X, Y, [range(2), torch.tensor([3])], test=0).sizes.tolist() == [2, 1]
    assert from_arrays(X, Y, [range(2), range(2, 4)], names=["z", "y"], test=0).names == ("z", "y")
    apart = from_arrays(X, Y, items, test=(X[:3] + 100, Y[:3], {"a": [2, 0]}))
    assert apart.test.x.tolist() == [[104, 105], [100, 101]]
    with pytest.raises(InvalidInput, match="column '1': 1 missing cell in row 3"):
        from_arrays(np.where(X == 7, np.nan, X), Y, items)


def test_clients_may_have_their_own_test_examples():
    rows = {"b": (X[:2], Y[:2]), "a": (X[2:], Y[2:])}
    data = FederatedDataset.from_clients(rows, test={"b": (X[3:] + 100, [1])})
    assert data.sizes.tolist() == [2, 2]
    assert data.test.sizes.tolist() == [0, 1]
    assert data.test.x.tolist() == [[106, 107]]
    listed = FederatedDataset.from_clients(list(rows.values()), test=list(rows.values()))
    assert torch.equal(listed.train.x, listed.test.x)
    with pytest.raises(InvalidInput, match="test examples of client 'c', which has no others"):
        FederatedDataset.from_clients(rows, test={"c": (X, Y)})
    with pytest.raises(InvalidInput, match="The test examples of client 'b': x has 4 rows, but y has 1"):
        FederatedDataset.from_clients(rows, test={"b": (X, [1])})


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ((X, Y, X, Y), r"Client 'a' has a tuple of 4: wanted a pair \(x, y\).* \(test examples apart, as test="),
        (((X, Y), (X, Y)), "Client 'a' has a tuple of 2: wanted a pair"),
        (torch.utils.data.DataLoader([1]), r"Client 'a' has a DataLoader: wanted .*, such as its \.dataset"),
        (torch.utils.data.TensorDataset(torch.ones(0, 2), torch.ones(0)), "Client 'a' has no rows"),
        (torch.utils.data.Subset([1], []), "Client 'a': The torch data set is empty"),
        (torch.utils.data.TensorDataset(torch.ones(1, 2)), "Client 'a': Item 0 of the torch data set"),
    ],
)
def test_refused_rows_of_a_client_are_named(rows, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        FederatedDataset.from_clients({"b": (X, Y), "a": rows})


def test_reversed_axes_are_read_like_others():
    x = X.astype(np.float32)
    for one in (x, x.astype(np.int64)):
        data = from_arrays(one[::-1, ::-1], Y, [0] * 4, test=0)
        assert data.train.x.tolist() == X[::-1, ::-1].tolist()
    assert from_arrays(x.astype(np.int64)[:, ::-1], Y, [0] * 4, test=0, scale="codes").train.x[0].tolist() == [1, 0]


def test_truth_in_order_or_by_name():
    assert from_arrays(X, Y, ["b", "a", "a", "b"], truth=[0, 1]).truth.tolist() == [0, 1]
    assert from_arrays(X, Y, ["b", "a", "a", "b"], truth={"b": 0, "a": 1}).truth.tolist() == [1, 0]


def test_test_examples_by_mask_or_as_separate_arrays():
    masked = from_arrays(X, Y, [0, 0, 1, 1], test=np.array([True, False, False, True]))
    assert masked.test.x.tolist() == [[0, 1], [6, 7]]
    assert masked.train.x.tolist() == [[2, 3], [4, 5]]
    apart = from_arrays(X, Y, ["a", "a", "b", "b"], test=(X[:1] + 100, [1], ["b"]))
    assert apart.test.sizes.tolist() == [0, 1]
    assert apart.sizes.tolist() == [2, 2]
    texts = from_arrays(X, ["u", "v", "v", "u"], [0, 0, 1, 1], test=(X[:1], ["v"], [1]))
    assert texts.test.y.tolist() == [1]


def test_the_shape_decides_what_is_a_picture_and_not_the_type():
    pictures = np.full((2, 3, 3), 51, dtype=np.uint8)
    for kind in (np.uint8, np.float64, np.int32):
        data = from_arrays(pictures.astype(kind), [0, 1], [0, 0], test=0)
        assert data.features == (1, 3, 3)
        assert as_numbers(data.train.x).unique().tolist() == pytest.approx([0.2])
        assert not data.standardise
        table = from_arrays(pictures.reshape(2, 9).astype(kind), [0, 1], [0, 0], test=0)
        assert table.train.x.unique().tolist() == [51]
        assert table.standardise
    flat = from_arrays(pictures.reshape(2, 9), [0, 1], [0, 0], test=0, scale="pixels")
    assert as_numbers(flat.train.x).unique().tolist() == pytest.approx([0.2])
    windows = from_arrays(pictures, [0, 1], [0, 0], test=0, scale="standard")
    assert (windows.features, windows.standardise, float(windows.train.x.max())) == ((3, 3), True, 51)
    assert from_arrays(pictures, [0, 1], [0, 0], test=0, standardise=False).preparation.scale == "none"


def test_codes_stay_whole_numbers():
    words = np.array([[3, 0], [2**40, 7], [1, 1]], dtype=np.uint64)
    for given in (words, words.astype(np.float64), words.tolist()):
        data = from_arrays(given, [0, 1, 1], ["a", "a", "b"], test=0, scale="codes")
        assert data.train.x.dtype == torch.int64
        assert data.train.x.tolist() == words.tolist()
        assert data.schema["codes"]
        assert not data.standardise
        assert data.preparation.apply(np.array([[5, 2**40]])).tolist() == [[5, 2**40]]
    table = from_arrays(words, [0, 1, 1], ["a", "a", "b"], test=0, scale="codes", feature_names=["one", "two"])
    assert table.train.x.tolist() == words.tolist()
    assert table.notes == ()


def test_the_given_array_is_not_written_to():
    x = np.full((2, 2), 255, dtype=np.uint8)
    floats = np.ones((2, 2), dtype=np.float32)
    floats.flags.writeable = False
    from_arrays(x, [0, 1], [0, 0])
    from_arrays(floats, [0, 1], [0, 0])
    assert (x == 255).all()


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ((X, Y[:3], [0] * 4), {}, "x has 4 rows, y 3 and client 4"),
        ((X, Y, [0.0] * 4), {}, "Client ids are of type float64"),
        ((X, Y, [[0]] * 4), {}, r"client has shape \[4, 1\]"),
        ((X, Y, {"a": [0, 4]}), {}, "Client 'a' has row 4, but the rows are numbered from 0 to 3"),
        ((X, Y, [[0, 1], [1, 2]]), {}, "Row 1 is given to clients '0' and '1'"),
        ((X, Y, {"a": [0, 0]}), {}, "Row 0 is given twice to client 'a'"),
        ((X, Y, {"a": [0, 1], "b": []}), {}, "Client 'b' has no rows"),
        (
            (X, Y, {"a": [True, False, True, False]}),
            {},
            r"rows of client 'a' are bool \[4\]: wanted a list of row numb",
        ),
        ((X, Y, {1: [0], "1": [1]}), {}, "Two clients are called '1'"),
        ((X, Y[:3], {"a": [0, 1]}), {}, "x has 4 rows, but y has 3"),
        ((X[:, 0], Y, [0] * 4), {}, r"use x\[:, None\]"),
        ((X.astype(complex), Y, [0] * 4), {}, "Features are of type"),
        ((X, [[0, 1]] * 4, [0] * 4), {}, r"Labels have shape \[4, 2\]"),
        ((X, [1j] * 4, [0] * 4), {}, "Labels are of type complex128"),
        ((X, Y, [0] * 4), {"missing": "zero"}, "missing='zero': wanted one of 'refuse'"),
        ((X, Y, [0] * 4), {"scale": "log"}, "scale='log': wanted one of 'auto'"),
        ((X + 0.5, Y, [0] * 4), {"scale": "codes"}, "A feature in row 0 is .*integers from 0"),
        ((-X, Y, [0] * 4), {"scale": "codes"}, "A feature in row . is -.*integers from 0"),
        ((np.where(X == 3, np.inf, X), Y, [0] * 4), {"scale": "codes"}, "A feature in row 1 is inf: codes"),
        ((np.array([["a", "b"]] * 4), Y, [0] * 4), {"scale": "codes"}, "Column '0' does not hold numbers: codes"),
        ((X, Y, [0] * 4), {"test": 1.0}, "is not a share"),
        ((X, Y, [0] * 4), {"test": [True]}, "wanted a share, a boolean for each of the 4 rows"),
        ((X, Y, [0] * 4), {"test": [True] * 4}, "Client '0' has no training examples"),
        ((X, Y, ["a"] * 4), {"test": (X, Y, ["b"] * 4)}, "Client 'b' has no training examples"),
        ((X, Y, ["a"] * 4), {"test": (X[:, :1], Y, ["a"] * 4)}, "they must agree"),
        ((X, Y, [0, 1, 2, 3]), {"names": ["a", "b"]}, "Client id 2 is not a position in the 2 names"),
        ((X, Y, [0, 0, 2, 2]), {"names": ["a", "b", "c"]}, "Client 'b' has no training examples"),
        ((X, Y, ["a"] * 4), {"truth": {"b": 0}}, "truth has no cluster for client 'a'"),
        ((X, Y, ["a"] * 4), {"truth": [0.5]}, "truth is of type float64"),
        ((X * [1, np.nan], Y, ["a"] * 4), {"test": 0}, "column '1': it has no values"),
        (
            (np.where(X == 3, np.nan, X), Y, ["a"] * 4),
            {},
            "column '1': 1 missing cell in row 1: use missing",
        ),
        ((X * 1e300, Y, ["a"] * 4), {"test": 0}, "feature 1 is inf"),
        (
            (X, (X[:, 0] + 0.3) * 1e25, ["a"] * 4),
            {"task": "regression"},
            "Numbers of the labels .* too large to be sum",
        ),
        (
            ((X + 1).astype(np.float32) * 1e30, Y, ["a"] * 4),
            {},
            r"Numbers of feature 0 \(such as 4e\+30\), .* too large",
        ),
    ],
)
def test_complaints(arguments, options, complaint):
    with pytest.raises(InvalidInput, match=complaint) as caught:
        from_arrays(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_short_floats_of_torch_are_numbers_like_others(kind):
    x = torch.tensor(X).to(kind)
    assert torch.equal(from_arrays(x, Y, ["a", "a", "b", "b"], test=0).train.x, x.float())
    targets = from_arrays(X, x[:, 0] + 0.5 if kind != torch.float8_e5m2 else X[:, 0] + 0.5, ["a"] * 4, test=0)
    assert targets.train.y.tolist() == [0.5, 2.5, 4.5, 6.5]


def test_a_number_too_large_for_float32_is_reported():
    with pytest.raises(InvalidInput, match=r"feature 0 is inf, or beyond what float32 holds \(3.4e\+38\)"):
        from_arrays([[1e39], [1.0]], [0, 1], ["a", "a"], test=0)


def test_masked_values_are_missing():
    x, y, client = np.arange(12.0).reshape(6, 2), np.array([0, 1] * 3), [0, 0, 0, 1, 1, 1]
    holes = np.ma.masked_equal(x, 3.0)
    with pytest.raises(InvalidInput, match="column '1': 1 missing cell in row 1"):
        FederatedDataset.from_arrays(holes, y, client)
    assert FederatedDataset.from_arrays(holes, y, client, missing="drop", test=0).sizes.tolist() == [2, 3]
    with pytest.raises(InvalidInput, match="label in row 0 is missing"):
        FederatedDataset.from_arrays(x, np.ma.array(y, mask=[1, 0, 0, 0, 0, 0]), client)
    words = np.ma.array(["a", "b"] * 3, mask=[0, 1, 0, 0, 0, 0])
    with pytest.raises(InvalidInput, match="label in row 1 is missing"):
        FederatedDataset.from_arrays(x, words, client)
    whole = FederatedDataset.from_arrays(np.ma.array(x), y, client)  # nothing is masked
    assert torch.equal(whole.train.x, FederatedDataset.from_arrays(x, y, client).train.x)


def test_a_sparse_matrix_is_its_numbers():
    x, y, client = np.eye(6)[:, :4], [0, 1] * 3, [0, 0, 0, 1, 1, 1]
    for kind in (sparse.csr_matrix, sparse.coo_array):
        data = FederatedDataset.from_arrays(kind(x), y, client)
        assert torch.equal(data.train.x, FederatedDataset.from_arrays(x, y, client).train.x)
    run = corymb.fit(corymb.FedAvg(rounds=1), data)
    assert np.array_equal(run.predict(sparse.csr_matrix(x), client="0"), run.predict(x, client="0"))


def test_a_loader_is_no_data_set():
    items = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(InvalidInput, match=r"A DataLoader has no items by number: give .* its \.dataset"):
        FederatedDataset.from_torch(torch.utils.data.DataLoader(items), [0, 0, 1, 1])


RAGGED = [[1, 2], [3, 4], [5], [6, 7]]
ONE_HOT = np.eye(2)[Y]


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        (RAGGED, Y, r"different sizes \(example 0 \[2\], example 2 \[1\]\): .* cut or pad sequences to one length"),
        (np.array([np.array(row) for row in RAGGED], dtype=object), Y, "Examples have different sizes"),
        ([torch.zeros(3, 4, 4 + row % 2) for row in range(4)], Y, r"example 0 \[3, 4, 4\], example 1 \[3, 4, 5\]"),
        ([[[1], [2, 3]]] * 4, Y, "x cannot be converted to an array"),
        (X, ONE_HOT, r"one label for each example: use y\.argmax\(1\)"),
        (X, np.ones((4, 3)), "for several labels or targets, fit one run for each"),
        (X, np.ones((4, 8, 8)), "labels for each pixel .* are not supported"),
    ],
)
def test_errors_about_sizes_and_many_labels_give_advice(x, y, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        from_arrays(x, y, [0, 1, 0, 1])
