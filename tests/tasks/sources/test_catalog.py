"""The catalogue of data sets."""

from clippedgossip.tasks.sources.catalog import CATALOG


def test_the_catalogue_is_whole() -> None:
    for spec in CATALOG.values():
        digests = [file.sha256 for file in spec.files] + [item.sha256 for item in spec.downloads]
        assert all(len(each) == 64 and int(each, 16) for each in digests)
        assert len(set(digests)) == len(digests)
        assert spec.downloads
        assert spec.packages
    assert sum(file.size for file in CATALOG["cifar10"].files) == 60_000 * 3073
    assert [file.size for file in CATALOG["mnist"].train] == [16 + 60_000 * 784, 8 + 60_000]
