"""BlueFog's longer names of the functions that reach neighbors."""

from bluecomm.window.get import win_get, win_get_nonblocking
from bluecomm.window.put import (
    win_accumulate,
    win_accumulate_nonblocking,
    win_put,
    win_put_nonblocking,
)

neighbor_win_put = win_put
neighbor_win_put_nonblocking = win_put_nonblocking
neighbor_win_accumulate = win_accumulate
neighbor_win_accumulate_nonblocking = win_accumulate_nonblocking
neighbor_win_get = win_get
neighbor_win_get_nonblocking = win_get_nonblocking
