//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"context"
	"errors"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/clib/internal/handle"
	"github.com/weftgo/weft/clib/internal/naming"
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

// fail leaves an error where weft_error of the calling thread finds it.
func fail(err error) C.int {
	status, rank := statusOf(err)
	text := naming.InC(err.Error())
	return C.libweft_fail(status, C.int(rank), (*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
}
