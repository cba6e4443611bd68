"""Download addresses of published data sets, with the sizes and digests that their files must have.

Sizes and sha256 are the values that TensorFlow Datasets records for the publishers' own files (its `url_checksums`);
the md5 values are from the publishers and torchvision.
"""

from dataclasses import dataclass

from training.errors import DataError


@dataclass(frozen=True)
class Download:
    """A published file: `size` in bytes, digests in hex; a size or digest of None is not checked."""

    name: str
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Publication:
    """The files of a data set, and its mirrors: https addresses of folders that each hold all files."""

    mirrors: tuple[str, ...]
    files: tuple[Download, ...]


MNIST = Publication(
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    files=(
        Download(
            "train-images-idx3-ubyte.gz",
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            size=9_912_422,
        ),
        Download(
            "train-labels-idx1-ubyte.gz",
            md5="d53e105ee54ea40749a09fcbcd1e9432",
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            size=28_881,
        ),
        Download(
            "t10k-images-idx3-ubyte.gz",
            md5="9fb629c4189551a2d022fa330f9573f3",
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            size=1_648_877,
        ),
        Download(
            "t10k-labels-idx1-ubyte.gz",
            md5="ec29112dd5afa0611ce80d1b7f02629c",
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            size=4_542,
        ),
    ),
)

# torchvision's address is the website of an S3 bucket, which supports plain http only. These https mirrors have the
# same bytes: the authors' repository, and the bucket itself.
FASHION_MNIST = Publication(
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    ),
    files=(
        Download(
            "train-images-idx3-ubyte.gz",
            md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            size=26_421_880,
        ),
        Download(
            "train-labels-idx1-ubyte.gz",
            md5="25c81989df183df01b3e8a0aad5dffbe",
            sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            size=29_515,
        ),
        Download(
            "t10k-images-idx3-ubyte.gz",
            md5="bef4ecab320f06d8554ea6380940ec79",
            sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            size=4_422_102,
        ),
        Download(
            "t10k-labels-idx1-ubyte.gz",
            md5="bb300cfdad3c16e7a12a480ee83cd310",
            sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            size=5_148,
        ),
    ),
)

_PINNED = {"MNIST": MNIST, "FashionMNIST": FASHION_MNIST}


def publication(name: str) -> Publication:
    """The publication of a data set of idx files, by the name of its class in torchvision.

    Files of data sets that are not listed above are checked only against torchvision's md5, and fetched only over
    https. Raises :class:`DataError` when torchvision has no such data set either.
    """
    if name in _PINNED:
        return _PINNED[name]
    # This import takes seconds, but happens only before a download.
    from torchvision import datasets

    known = vars(getattr(datasets, name, object))  # own attributes only: inherited ones are MNIST's
    if "mirrors" not in known or not isinstance(known.get("resources"), list):
        raise DataError(f"torchvision has no data set {name!r} of idx files; set data.path to its files.")
    return Publication(
        mirrors=tuple(mirror.replace("http://", "https://", 1) for mirror in known["mirrors"]),
        files=tuple(Download(file, md5=md5) for file, md5 in known["resources"]),
    )
