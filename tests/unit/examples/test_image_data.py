"""The readers of published datasets, and their errors about other files."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from image_data import (
    ImageFolder,
    ShiftedAndMirrored,
    load_cifar10,
    load_digits_28,
    load_mnist,
    read_idx,
    synthetic_images,
)


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist(tmp_path: Path, suffix: str) -> None:
    images = np.arange(5 * 28 * 28).reshape(5, 28, 28) % 256
    write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", images)
    write_idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", np.array([3, 1, 4, 1, 5]))
    loaded, labels = load_mnist(str(tmp_path), train=True)
    assert labels.tolist() == [3, 1, 4, 1, 5]
    pixels = (loaded[:, 0] * 0.3081 + 0.1307) * 255
    torch.testing.assert_close(pixels, torch.tensor(images).float())
    with pytest.raises(FileNotFoundError, match="none of t10k-images-idx3-ubyte, t10k"):
        load_mnist(str(tmp_path), train=False)


def test_mnist_with_labels_of_another_set(tmp_path: Path) -> None:
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((2, 28, 28)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(3))
    with pytest.raises(ValueError, match=r"\(2, 28, 28\) images do not match \(3,\)"):
        load_mnist(str(tmp_path), train=False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an IDX file of unsigned bytes"),
        (b"\0\0\x0d\1\0\0\0\1", "not an IDX file of unsigned bytes"),
        (b"\0\0\x08\1\0\0\0\3ab", r"expected 3 bytes for shape \(3,\), got 2"),
        (b"\0\0\x08\2\0\0\0\3", "got -4"),
    ],
)
def test_what_is_no_idx_file(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "file")


def write_cifar(path: Path, content: object) -> None:
    # The published files were made by Python 2, whose strings are bytes here.
    path.write_bytes(pickle.dumps(content, protocol=2))


def test_cifar10(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(1, 6):
        data = np.full((2, 3072), number * 10, np.uint8)
        batch = {b"data": data, b"labels": [number, 0]}
        write_cifar(folder / f"data_batch_{number}", batch)
    images, labels = load_cifar10(str(tmp_path), train=True)
    assert images.shape == (10, 3, 32, 32)
    assert labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert images[0, 0, 0, 0] == pytest.approx((10 / 255 - 0.4914) / 0.2470)
    with pytest.raises(FileNotFoundError, match="test_batch"):
        load_cifar10(str(folder), train=False)


def test_shifted_and_mirrored() -> None:
    image = torch.arange(1.0, 193.0).reshape(1, 3, 8, 8)
    shifted = ShiftedAndMirrored(image, torch.tensor([5]))
    torch.manual_seed(1)
    seen = [shifted[0] for _ in range(20)]
    assert all(pixels.shape == (3, 8, 8) and int(label) == 5 for pixels, label in seen)
    assert len({tuple(pixels.flatten().tolist()) for pixels, _ in seen}) > 10
    # Pixels that are shifted in are black; the others come from the image.
    assert all(set(p.flatten().tolist()) <= set(range(193)) for p, _ in seen)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": []}, "is not a batch of CIFAR-10"),
        (Path("x"), "must not contain pathlib"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "2 images, 1 label"),
    ],
)
def test_what_is_no_batch(tmp_path: Path, content: object, message: str) -> None:
    write_cifar(tmp_path / "test_batch", content)
    with pytest.raises(ValueError, match=message):
        load_cifar10(str(tmp_path), train=False)


def test_folder_of_images(tmp_path: Path) -> None:
    for name, color in {"cat": (255, 0, 0), "dog": (0, 0, 255)}.items():
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 30), color).save(tmp_path / name / "1.png")
    (tmp_path / "cat" / "notes.txt").touch()
    for augment in (False, True):
        images = ImageFolder(str(tmp_path), 16, augment=augment)
        assert (images.classes, len(images)) == (["cat", "dog"], 2)
        pixels, label = images[1]
        assert (pixels.shape, int(label)) == ((3, 16, 16), 1)
        assert pixels[2].min() > 2.6
        assert pixels[0].max() < -2
    with pytest.raises(FileNotFoundError, match="has no CLASS/IMAGE files"):
        ImageFolder(str(tmp_path / "cat"), 16, augment=False)


def test_data_without_files() -> None:
    images, labels = load_digits_28(train=False)
    assert images.shape == (360, 1, 28, 28)
    assert len(labels) == 360
    train, _ = load_digits_28(train=True)
    assert len(train) == 1437
    images, labels = synthetic_images(6, 32, 10, seed=1)
    assert images.shape == (6, 3, 32, 32)
    assert torch.equal(synthetic_images(6, 32, 10, seed=1)[0], images)
