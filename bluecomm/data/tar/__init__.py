"""Tar files in the layout of WebDataset: the files of one sample share a key.

Source: the WebDataset format (github.com/webdataset/webdataset): files whose paths are
equal up to the first dot of the file's name, and adjacent, are one sample.
"""
