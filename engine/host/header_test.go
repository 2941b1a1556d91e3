package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/rankset"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestRefusal: what one rank writes another reads, cut to the room there is.
func TestRefusal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, words := make([]byte, RefusalBytes), rapid.StringN(0, 400, 400).Draw(t, "words")
		err, kind := weft.Invalidf("%s", words), weft.ErrInvalid
		if rapid.Bool().Draw(t, "unsupported") {
			err, kind = weft.Unsupportedf("%s", words), weft.ErrUnsupported
		}
		got := TakeRefusal(2, "op", PutRefusal(text, err), text)
		peer, ok := errors.AsType[*weft.PeerError](got)
		want := err.Error()
		want = strings.TrimPrefix(want[:min(len(want), RefusalBytes)], kind.Error()+": ")
		if !ok || peer.Rank != 2 || !errors.Is(got, kind) || !strings.HasSuffix(got.Error(), want) {
			t.Fatalf("%q became %q", err, got)
		}
	})
}

// TestOperands: references are read as they were written, and have the header's room.
func TestOperands(t *testing.T) {
	mem := make([]byte, operandBytes)
	*operandsIn(mem) = operands{window: [2]uint64{1, 2}, offset: [2]uint64{3, 4}, stride: [2]uint32{5, 6}}
	if operandBytes != inLineBytes {
		t.Errorf("operands take %d of %d bytes", operandBytes, inLineBytes)
	}
	if o := operandsIn(bytes.Clone(mem)); o.window[1] != 2 || o.offset[0] != 3 || o.stride[1] != 6 {
		t.Errorf("%+v", o)
	}
}

// pair makes rounds of two goroutine ranks, that of the second one only so that it has memory.
func pair(f *testing.F, ring int) (r *Rounds, comms []*weft.Comm) {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	comms, made := ranktest.New(f, 2), make([]*Rounds, 2)
	err := ranktest.Each(comms, func(c *weft.Comm) (err error) {
		made[c.Rank()], err = New(ctx, c, Config{Kind: "pair", Ring: ring, Differs: func(calls rankset.Camps[uint64]) string {
			return calls.Calling("calls", func(c uint64) string { return fmt.Sprint(c) })
		}})
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		for _, r := range made {
			if err := r.Window.Close(); err != nil {
				f.Error(err)
			}
		}
	})
	return made[0], comms
}

// FuzzHeader reads a header as a peer may have left it: whatever is in there, nothing outside the
// peer's memory is read, and errors can be printed.
func FuzzHeader(f *testing.F) {
	const ring = 1 << 12
	inLine := func(words ...uint64) (b []byte) {
		for _, w := range words {
			for i := range 8 {
				b = append(b, byte(w>>(8*i)))
			}
		}
		return b
	}
	f.Add(uint64(0), inLine(0, 0, 0, 0, 0), []byte{}, 0)
	f.Add(uint64(RefusedCall|5), inLine(0), []byte("wrong"), 8)
	f.Add(uint64(RefusedCall|unsupportedRefusal|300), inLine(1<<10), bytes.Repeat([]byte{255}, 300), 200)
	f.Add(uint64(RefusedCall), inLine(math.MaxUint64), []byte{255}, ring)
	f.Add(uint64(RefusedCall), inLine(ring-64), []byte{1, 'x'}, 65)
	f.Add(uint64(math.MaxUint64>>1), inLine(1, ring, 1, ring-1, 1), []byte{}, 41)
	f.Add(uint64(7), inLine(1, math.MaxUint64, 2, 1<<63, math.MaxUint64), []byte{}, 1)
	f.Add(uint64(1), inLine(math.MaxUint64, 1, 1<<63, 0, 1), []byte{1}, 4095)

	r, comms := pair(f, ring)
	f.Fuzz(func(t *testing.T, call uint64, inLine, payload []byte, n int) {
		// A failed communicator hides what the next input does.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := ranktest.Each(comms, func(c *weft.Comm) error { return c.SetMask(ctx) })
		if err := errors.Join(err, r.Begin("fuzz")); err != nil {
			t.Fatal(err)
		}
		round := r.Last()
		*r.mine.at(round).call, *r.pads[1].at(round).call = 7, call
		line := r.pads[1].at(round).payload(inLineBytes)
		clear(line)
		copy(line, inLine)
		clear(r.pads[1].ring)
		copy(r.pads[1].ring[min(*r.pads[1].at(round).offset(), uint64(ring)):], payload)

		inside := func(what string, b, mem []byte) {
			at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
			if at > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-at {
				t.Fatalf("%s: %d bytes at %d of %d", what, len(b), at, len(mem))
			}
		}
		m := int(uint(n) % (ring/RingShare + 1)) // the caller's, who knows how much a round carries
		payload = r.Payload(1, round, m)
		if inside("payload", payload, r.Window.Peer(1)); len(payload) != m || cap(payload) != m {
			t.Fatalf("payload of %d bytes has %d, room for %d", m, len(payload), cap(payload))
		}
		err = r.compare("fuzz", round, nil)
		if (err == nil) != (call == 7) {
			t.Fatalf("%#x: %v", call, err)
		}
		blamed := -1 // of two that differ neither
		if call&RefusedCall != 0 {
			blamed = 1
		}
		if peer, ok := errors.AsType[*weft.PeerError](err); err != nil && (!ok || peer.Rank != blamed ||
			errors.Is(err, weft.ErrMismatch) == (blamed == 1) || len(err.Error()) > 2*RefusalBytes) {
			t.Fatalf("%#x: %v", call, err)
		}
		for i := range 2 {
			ref := r.Operand(1, round, i)
			for _, w := range []uint64{ref.Window, r.Window.ID()} {
				ref.Window = w
				mem, err := r.Resolve(1, ref, "fuzz")
				switch {
				case err != nil && (mem != nil || !errors.Is(err, weft.ErrClosed) && !errors.Is(err, weft.ErrAborted)):
					t.Fatalf("%+v: %d bytes and %v", ref, len(mem), err)
				case mem != nil:
					inside(fmt.Sprintf("%+v", ref), mem, r.Window.Peer(1))
				}
			}
		}
	})
}
