//go:build cgo && linux

package main

// #include "internal.h"
import "C"

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
)

// allGather is a bootstrap over a function of the caller's. Joining needs no more of one than an
// all-gather, and needs it only while it lasts, so the function is called by the thread that joins
// and never again.
type allGather struct {
	rank, size int
	call       C.weft_all_gather_fn
	context    unsafe.Pointer
	here       func(func()) // runs a function on the thread that joins
}

func newAllGather(call C.weft_all_gather_fn, context unsafe.Pointer, rank, size int,
	here func(func()),
) (bootstrap.Bootstrap, error) {
	if call == nil {
		return nil, invalidf("the all-gather function is NULL")
	}
	if size < 1 || rank < 0 || rank >= size {
		return nil, invalidf("rank %d of %d", rank, size)
	}
	return &allGather{rank: rank, size: size, call: call, context: context, here: here}, nil
}

func (a *allGather) Rank() int { return a.rank }
func (a *allGather) Size() int { return a.size }

// AllGather gathers how long the ranks' data is, and then the data, padded to the longest.
func (a *allGather) AllGather(_ context.Context, data []byte) ([][]byte, error) {
	if len(data) > bootstrap.MaxMessage {
		return nil, fmt.Errorf("all-gather: %w: %d bytes", bootstrap.ErrTooLong, len(data))
	}
	raw, err := a.gather(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	if err != nil {
		return nil, err
	}
	sizes, most := make([]int, a.size), 1
	for r := range sizes {
		n := binary.LittleEndian.Uint64(raw[8*r:])
		if n > bootstrap.MaxMessage {
			return nil, &bootstrap.PeerError{
				Rank: r, Op: "all-gather",
				Err: fmt.Errorf("%w: it brings %d bytes", bootstrap.ErrProtocol, n),
			}
		}
		sizes[r], most = int(n), max(most, int(n))
	}
	if raw, err = a.gather(append(data[:len(data):len(data)], make([]byte, most-len(data))...)); err != nil {
		return nil, err
	}
	all := make([][]byte, a.size)
	for r, n := range sizes {
		all[r] = raw[r*most : r*most+n : r*most+n]
	}
	return all, nil
}

func (a *allGather) gather(mine []byte) ([]byte, error) {
	all := make([]byte, a.size*len(mine))
	var code C.int
	a.here(func() {
		code = C.libweft_all_gather(a.call, a.context, unsafe.Pointer(&mine[0]), C.size_t(len(mine)), unsafe.Pointer(&all[0]))
	})
	if code != 0 {
		return nil, fmt.Errorf("%w: the caller's all-gather returned %d", weft.ErrAborted, code)
	}
	if !bytes.Equal(all[a.rank*len(mine):][:len(mine)], mine) {
		return nil, fmt.Errorf("%w: the caller's all-gather returned other bytes for rank %d than it "+
			"passed: does it keep the ranks' order?", weft.ErrMismatch, a.rank)
	}
	return all, nil
}

func (a *allGather) Barrier(ctx context.Context) error {
	_, err := a.AllGather(ctx, nil)
	return err
}

func (a *allGather) Send(context.Context, int, []byte) error {
	return weft.Unsupportedf("send: an all-gather of the caller's is all there is")
}

func (a *allGather) Recv(context.Context, int) ([]byte, error) {
	return nil, weft.Unsupportedf("recv: an all-gather of the caller's is all there is")
}

func (a *allGather) Close() error { return nil }
