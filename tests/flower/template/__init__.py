"""A small Flower app in the form of Flower's own PyTorch template: it knows nothing of Sordino.

The files have the template's names, records, keys and settings. What it loads from the network is replaced: torchvision
and flwr-datasets are not at hand in tests, so that `load_data` deals out the digits that come with scikit-learn.
"""
