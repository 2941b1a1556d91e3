//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
)

var errInternal = errors.New("internal error")

func invalidf(format string, args ...any) error { return weft.Invalidf(format, args...) }

// statuses maps errors to statuses, the more specific first: an error may wrap several.
var statuses = []struct {
	err    error
	status C.int
}{
	{errInternal, C.WEFT_ERROR_INTERNAL},
	{handle.ErrInvalid, C.WEFT_ERROR_HANDLE},
	{handle.ErrBusy, C.WEFT_ERROR_BUSY},
	{weft.ErrBusy, C.WEFT_ERROR_BUSY},
	{weft.ErrDied, C.WEFT_ERROR_DIED},
	{weft.ErrLeft, C.WEFT_ERROR_LEFT},
	{weft.ErrMasked, C.WEFT_ERROR_MASKED},
	{weft.ErrMismatch, C.WEFT_ERROR_MISMATCH},
	{bootstrap.ErrSizeMismatch, C.WEFT_ERROR_MISMATCH},
	{bootstrap.ErrDuplicateRank, C.WEFT_ERROR_MISMATCH},
	{bootstrap.ErrProtocol, C.WEFT_ERROR_MISMATCH},
	{bootstrap.ErrSecret, C.WEFT_ERROR_MISMATCH},
	{weft.ErrTimeout, C.WEFT_ERROR_TIMEOUT},
	{weft.ErrInvalid, C.WEFT_ERROR_INVALID},
	{bootstrap.ErrEnvironment, C.WEFT_ERROR_INVALID},
	{weft.ErrUnsupported, C.WEFT_ERROR_UNSUPPORTED},
	{cuda.ErrUnsupported, C.WEFT_ERROR_UNSUPPORTED},
	{handle.ErrFull, C.WEFT_ERROR_UNSUPPORTED},
	{weft.ErrAborted, C.WEFT_ERROR_ABORTED},
	{weft.ErrClosed, C.WEFT_ERROR_CLOSED},
	{bootstrap.ErrClosed, C.WEFT_ERROR_CLOSED},
	{cuda.ErrClosed, C.WEFT_ERROR_CLOSED},
	{context.DeadlineExceeded, C.WEFT_ERROR_TIMEOUT},
}

// statusOf is an error's status and the rank to blame, or -1.
func statusOf(err error) (status C.int, rank int) {
	rank = -1
	if peer, ok := errors.AsType[*weft.PeerError](err); ok {
		rank = peer.Rank
	}
	if overflow, ok := errors.AsType[*ep.OverflowError](err); ok {
		return C.WEFT_ERROR_OVERFLOW, overflow.Rank
	}
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.status, rank
		}
	}
	return C.WEFT_ERROR_SYSTEM, rank
}

// fieldsInC are C's names of the Spec's fields and values that errors name.
var fieldsInC = map[string]string{
	"Experts": "experts", "Layout": "layout", "Reduction": "reduction", "Weighting": "weighting",
	"Payload": "payload", "Quantize": "quantize", "PowerOfTwoScales": "power_of_two_scales",
	"ScaleOrder": "scale_order", "Counts": "counts", "Overflow": "overflow", "SMs": "sms",
	"Alignment": "alignment", "Threads": "threads", "Scratch": "scratch", "Staging": "staging",
	"DTypes": "dtypes", "Force": "force", "Algorithms": "algorithms", "Select": "select",
	"MaxTokens": "max_tokens", "TopK": "topk", "Hidden": "hidden", "RowBytes": "row_bytes",
	"ScaleBytes": "scale_bytes", "Capacity": "capacity", "Live": "live",
	"SerialGroup": "serial_group", "Output": "output", "HostCounts": "host counts", "DeviceCounts": "device counts",
	"OverflowDrop": "overflow drop",
	"Tuning":       "dispatch_tuning and combine_tuning", "Tuning.Dispatch": "dispatch_tuning",
	"Tuning.Combine": "combine_tuning", "Blocks": "blocks", "Bulk": "bulk",
	"Warps": "warps", "Parts": "parts", "Protocol": "protocol", "Units": "units", "Senders": "senders",
	"Dependent": "dependent",
}

// callsInC are C's names of what errors tell to do. WithDeadline sets a member of weft_comm_options.
var callsInC = strings.NewReplacer(
	"WithDeadline", "deadline_ms", "SetMask", "weft_comm_set_mask", "called Abort", "called weft_comm_abort",
	"Abort ends it", "weft_comm_abort ends it", "Shrink makes", "weft_comm_shrink makes",
	"use Wait", "use weft_work_wait", "which the context sets", "which weft_timeout_set sets",
)

// capitalised matches words that may be one of them: errors begin with small letters, and most of
// their words do.
var capitalised = regexp.MustCompile(`\b(Tuning\.(Dispatch|Combine)|[A-Z][A-Za-z]+)\b`)

// inC replaces Go's names in an error's words by C's.
func inC(words string) string {
	return capitalised.ReplaceAllStringFunc(callsInC.Replace(words), func(name string) string {
		if in, ok := fieldsInC[name]; ok {
			return in
		}
		return name
	})
}

// fail leaves an error where weft_error of the calling thread finds it.
func fail(err error) C.int {
	status, rank := statusOf(err)
	text := inC(err.Error())
	return C.libweft_fail(status, C.int(rank), (*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
}
