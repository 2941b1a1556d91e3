"""What weft.h says: enumerators, structs and functions. A test compares it with the record of the library's ABI."""

from __future__ import annotations

import ctypes
import enum
import functools
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

VERSION = 1
MAX_DIMS = 4
ABSENT = 255
UNIQUE_ID_BYTES = 136
STREAM_OWN = 2**64 - 1


class Status(enum.IntEnum):
    OK = 0
    ERROR_INVALID = 1
    ERROR_UNSUPPORTED = 2
    ERROR_TIMEOUT = 3
    ERROR_ABORTED = 4
    ERROR_DIED = 5
    ERROR_LEFT = 6
    ERROR_MISMATCH = 7
    ERROR_MASKED = 8
    ERROR_CLOSED = 9
    ERROR_OVERFLOW = 10
    ERROR_HANDLE = 11
    ERROR_BUSY = 12
    ERROR_FORKED = 13
    ERROR_SYSTEM = 14
    ERROR_INTERNAL = 15


class Part(enum.IntEnum):
    EXPERT_COUNTS = 0
    EXPERT_DEMAND = 1
    PADDED_COUNTS = 2
    EXPERT_OFFSETS = 3
    RANGES = 4
    SOURCE_COUNTS = 5
    SOURCE_RANKS = 6
    SOURCE_TOKENS = 7
    ROW_WEIGHTS = 8
    ROW_EXPERTS = 9
    ROW_SELECTION_WEIGHTS = 10
    ROW_DEMAND = 11
    SOURCE_SELECTIONS = 12


class Struct(ctypes.Structure):
    """A struct of weft.h, which begins with its size."""

    size: int

    def __init__(self, **members: object) -> None:
        for name, value in members.items():
            if isinstance(value, int):
                self._check(name, value)
        super().__init__(size=ctypes.sizeof(self), **members)

    def _check(self, name: str, value: int) -> None:
        """Refuses what a member would take for another number."""
        least, most = _range(type(self), name)
        if not least <= value <= most:
            from .errors import InvalidError

            raise InvalidError(f"{name}: {value}, want {least} to {most}")


@functools.cache
def _range(struct: type[Struct], name: str) -> tuple[int, int]:
    """What a member of a struct can hold."""
    bits = 8 * getattr(struct, name).size
    if any(member == name and of in (c_int32, c_int64) for member, of in struct._fields_):
        return -(1 << bits - 1), (1 << bits - 1) - 1
    return 0, (1 << bits) - 1


class Tensor(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("dims", c_int32),
        ("shape", c_int64 * MAX_DIMS),
    )


LogFunction = CFUNCTYPE(None, c_void_p, c_char_p)
AllGatherFunction = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)


class CommOptions(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("engine", c_int32),
        ("gpu", c_int32),
        ("deadline_ms", c_int64),
        ("no_huge_pages", c_int32),
        ("reserved", c_int32),
        ("log", LogFunction),
        ("log_context", c_void_p),
    )


class CommInfo(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("local_ranks", c_int32),
        ("engine", c_int32),
        ("deadline_ms", c_int64),
        ("mask", c_uint64),
        ("generation", c_uint64),
    )


class WindowInfo(Struct):
    _fields_ = (("size", c_size_t), ("id", c_uint64), ("bytes", c_uint64), ("memory", c_void_p))


class EpSpec(Struct):
    tunings: dict[str, EpKernelTuning]
    _fields_ = (
        ("size", c_size_t),
        ("experts", c_int64),
        ("topk", c_int64),
        ("hidden", c_int64),
        ("max_tokens", c_int64),
        ("layout", c_int32),
        ("wire", c_int32),
        ("reduction", c_int32),
        ("weighting", c_int32),
        ("payload", c_int32),
        ("quantize", c_int32),
        ("power_of_two_scales", c_int32),
        ("scale_order", c_int32),
        ("output", c_int32),
        ("counts", c_int32),
        ("overflow", c_int32),
        ("sms", c_int32),
        ("row_bytes", c_int64),
        ("scale_bytes", c_int64),
        ("capacity", c_int64),
        ("alignment", c_int64),
        ("live", c_int64),
        ("dispatch_tuning", c_void_p),
        ("combine_tuning", c_void_p),
        ("series", c_int64),
    )


class EpKernelTuning(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("threads", c_int32),
        ("protocol", c_int32),
        ("units", c_int32),
        ("senders", c_int32),
        ("dependent", c_int32),
        ("blocks", c_int32),
        ("bulk", c_int32),
        ("warps", c_int32),
        ("parts", c_int32),
        ("reserved", c_int32),
    )


class EpInfo(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("capacity", c_int64),
        ("memory_bytes", c_int64),
        ("dispatch_sms", c_int32),
        ("combine_sms", c_int32),
        ("gradient_sms", c_int32),
        ("reserved", c_int32),
    )


class EpLayout(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("experts", c_int64),
        ("ranks", c_int64),
        ("ranks_per_node", c_int64),
        ("rank_tokens", c_void_p),
        ("node_tokens", c_void_p),
        ("expert_selections", c_void_p),
        ("token_in_rank", c_void_p),
    )


class EpCensus(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("rank_tokens", c_void_p),
        ("node_tokens", c_void_p),
        ("expert_selections", c_void_p),
        ("token_in_rank", c_void_p),
    )


class EpDispatchArgs(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("routing", c_void_p),
        ("topk", c_void_p),
        ("weights", c_void_p),
        ("rows", c_void_p),
        ("scales", c_void_p),
    )


class EpDispatchResult(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("received", c_void_p),
        ("routing", c_void_p),
        ("data", c_void_p),
        ("scales", c_void_p),
    )


class EpCopyArgs(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("received", c_void_p),
        ("rows", c_void_p),
        ("scales", c_void_p),
        ("scale_order", c_int32),
        ("reserved", c_int32),
        ("source_tokens", c_void_p),
        ("source_ranks", c_void_p),
        ("row_weights", c_void_p),
        ("row_experts", c_void_p),
        ("row_selection_weights", c_void_p),
        ("expert_counts", c_void_p),
        ("ranges", c_void_p),
        ("source_counts", c_void_p),
    )


class EpCombineArgs(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("routing", c_void_p),
        ("rows", c_void_p),
        ("out", c_void_p),
        ("bias", c_void_p * 2),
        ("weights", c_void_p),
        ("received", c_void_p),
    )


class EpDispatchBackwardArgs(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("routing", c_void_p),
        ("grad_rows", c_void_p),
        ("grad_row_weights", c_void_p),
        ("grad_tokens", c_void_p),
        ("grad_weights", c_void_p),
        ("received", c_void_p),
    )


class EpCombineBackwardArgs(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("routing", c_void_p),
        ("grad_out", c_void_p),
        ("rows", c_void_p),
        ("grad_rows", c_void_p),
        ("grad_weights", c_void_p),
        ("received", c_void_p),
    )


class RoutingInfo(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("tokens", c_int64),
        ("rows", c_int64),
        ("received", c_int64),
        ("demand", c_int64),
        ("selections", c_int64),
        ("visits", c_int64),
        ("remote_rows", c_int64),
    )


class RoutingDescription(Struct):
    _fields_ = (
        ("size", c_size_t),
        ("expert_counts", c_void_p),
        ("expert_demand", c_void_p),
        ("padded_counts", c_void_p),
        ("expert_offsets", c_void_p),
        ("ranges", c_void_p),
        ("source_counts", c_void_p),
        ("source_ranks", c_void_p),
        ("source_tokens", c_void_p),
        ("row_weights", c_void_p),
        ("row_experts", c_void_p),
        ("row_selection_weights", c_void_p),
        ("source_selections", c_void_p),
    )


class GroupOptions(Struct):
    _fields_ = (("size", c_size_t), ("scratch", c_int64))


_handle, _stream, _pointer = c_void_p, c_void_p, c_void_p

# The arguments of every function. All return a status, unless RESULTS says something else.
FUNCTIONS: dict[str, tuple[type, ...]] = {
    "weft_version": (),
    "weft_dlpack_deleter": (c_void_p,),
    "weft_error": (),
    "weft_error_rank": (),
    "weft_error_set": (c_int, c_int, c_char_p),
    "weft_status_name": (c_int,),
    "weft_timeout_set": (c_int64,),
    "weft_signal_check": (c_int,),
    "weft_comm_create": (POINTER(CommOptions), _pointer),
    "weft_unique_id_create": (c_char_p, c_char_p),
    "weft_unique_id_release": (c_char_p,),
    "weft_comm_create_with_id": (c_char_p, c_int, c_int, POINTER(CommOptions), _pointer),
    "weft_comm_create_with_all_gather": (AllGatherFunction, c_void_p, c_int, c_int, POINTER(CommOptions), _pointer),
    "weft_comm_leave": (_handle,),
    "weft_comm_destroy": (_handle,),
    "weft_comm_get": (_handle, POINTER(CommInfo)),
    "weft_comm_error": (_handle,),
    "weft_comm_abort": (_handle,),
    "weft_comm_set_mask": (_handle, c_uint64),
    "weft_comm_wait": (_handle, _stream),
    "weft_window_create": (_handle, c_size_t, _pointer),
    "weft_window_create_from_fd": (_handle, c_int, c_size_t, _pointer),
    "weft_window_create_from_memory": (_handle, c_void_p, c_size_t, _pointer),
    "weft_window_get": (_handle, POINTER(WindowInfo)),
    "weft_window_peer": (_handle, c_int, _pointer),
    "weft_window_destroy": (_handle,),
    "weft_ep_check": (POINTER(EpSpec), c_int, c_int),
    "weft_ep_create": (_handle, POINTER(EpSpec), _pointer),
    "weft_ep_destroy": (_handle,),
    "weft_ep_get": (_handle, POINTER(EpInfo)),
    "weft_ep_combine_buffer": (_handle, _pointer),
    "weft_ep_gradient_buffer": (_handle, _pointer),
    "weft_ep_count": (_pointer, _pointer),
    "weft_ep_counter_create": (_handle, c_int64, c_int64, c_int64, _pointer),
    "weft_ep_counter_count": (_handle, _stream, _pointer, _pointer),
    "weft_ep_counter_destroy": (_handle,),
    "weft_ep_prepare": (_handle, _stream, _pointer, _pointer, _pointer),
    "weft_ep_dispatch": (_handle, _stream, _pointer, _pointer, _pointer),
    "weft_ep_combine": (_handle, _stream, _pointer, _pointer),
    "weft_ep_copy_received": (_handle, _stream, _pointer),
    "weft_ep_dispatch_backward": (_handle, _stream, _pointer),
    "weft_ep_combine_backward": (_handle, _stream, _pointer),
    "weft_ep_count_waits": (_handle, _pointer, _pointer),
    "weft_work_receive": (_handle, _pointer),
    "weft_work_wait": (_handle,),
    "weft_received_release": (_handle,),
    "weft_routing_get": (_handle, POINTER(RoutingInfo)),
    "weft_routing_tensor": (_handle, c_int, _pointer),
    "weft_routing_describe": (_handle, _pointer),
    "weft_routing_release": (_handle,),
    "weft_group_create": (_handle, POINTER(GroupOptions), _pointer),
    "weft_group_destroy": (_handle,),
    "weft_barrier": (_handle, _stream),
    "weft_all_reduce": (_handle, _stream, _pointer, _pointer, c_int),
    "weft_all_gather": (_handle, _stream, _pointer, _pointer),
    "weft_broadcast": (_handle, _stream, _pointer, c_int),
}

RESULTS: dict[str, type] = {"weft_error": c_char_p, "weft_status_name": c_char_p}
