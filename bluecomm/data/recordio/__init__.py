"""The RecordIO format of PaddlePaddle: chunks of records, each with a checksum.

Source: the Go package ``recordio`` of PaddlePaddle (github.com/wangkuiyi/recordio).
"""
