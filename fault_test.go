package weft_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric"
)

// abortKinds are machines that pin the control page, and that refuse to.
func abortKinds(t *testing.T, body func(t *testing.T, refuse func(*cudatest.Machine))) {
	t.Run("registered", func(t *testing.T) { body(t, func(*cudatest.Machine) {}) })
	t.Run("mirrored", func(t *testing.T) {
		body(t, func(m *cudatest.Machine) { m.Fail("cuMemHostRegister", 0, cuda.ErrNotPermitted) })
	})
}

// TestDeviceAbort: a kernel that waits sees the abort word, which a rank's peers set, and runs
// again after SetMask.
func TestDeviceAbort(t *testing.T) {
	abortKinds(t, func(t *testing.T, refuse func(*cudatest.Machine)) {
		m, d := machine(t, cudatest.Config{})
		s := newSpin(m)
		refuse(m)
		refuse(m)
		group := joinOn(t, d, []int{0, 0})
		ctx := testContext(t)
		for range 3 {
			spinning := make(chan error)
			go func() { spinning <- launch(group[0], "spin", group[0].Operations().AbortWord()) }()
			<-s.started
			group[1].Abort()
			// Waiting for the stream ends with the kernel, and says why it ended.
			blames(t, 0, group[0].Wait(ctx, nil), 1, weft.ErrAborted)
			if err := <-spinning; err != nil {
				t.Fatal(err)
			}
			must(t, group, func(c *weft.Comm) error { return errors.Join(c.SetMask(ctx), c.Err()) })
			for r, c := range group {
				if word := m.Bytes(c.Operations().AbortWord(), 8); *(*uint64)(unsafe.Pointer(&word[0])) != 0 {
					t.Errorf("rank %d's kernels still see an abort word", r)
				}
			}
		}
	})
}

// TestDeviceRecord: what a wait on the device records is an error on every rank, that of the wait
// on its own, until SetMask.
func TestDeviceRecord(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	newSpin(m)
	group := joinOn(t, d, []int{0, 0, 0})
	ctx := testContext(t)
	for range 2 {
		record := group[0].Operations().WaitRecord()
		if err := launch(group[0], "give up", record, uint32(device.CauseTimeout), int32(2)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, err := range []error{
				group[0].Operations().Begin("something"), group[0].Err(), group[0].Wait(ctx, nil),
				group[0].Operations().VerifySame(ctx, "agree", "", nil),
			} {
				blames(t, 0, err, 2, weft.ErrTimeout)
				for _, word := range []string{"dispatch", "epoch 41", "expected 7", "seen 3"} {
					if err != nil && !strings.Contains(err.Error(), word) {
						t.Errorf("it does not say %q: %v", word, err)
					}
				}
			}
		}
		blames(t, 1, group[1].Err(), 2, weft.ErrTimeout)
		blames(t, 2, group[2].Err(), 2, weft.ErrTimeout)
		must(t, group, func(c *weft.Comm) error {
			return errors.Join(c.SetMask(ctx), c.Err(), c.Operations().VerifySame(ctx, "agree", "", nil))
		})
	}
	// The others may go on without the one that is blamed.
	blames(t, 1, giveUp(group[1], 0), 0, weft.ErrTimeout)
	must(t, group[1:], func(c *weft.Comm) error {
		return errors.Join(c.SetMask(ctx, 0), c.Err(), c.Operations().VerifySame(ctx, "agree", "without 0", nil))
	})
}

// TestDeviceCircle: waits on devices that have given each other up are nobody's fault, and a chain
// of them is that of the rank at its end.
func TestDeviceCircle(t *testing.T) {
	for _, c := range []struct {
		peers   map[int]int32 // who gives up on whom
		culprit int
	}{
		{map[int]int32{0: 1, 1: 2, 2: 0}, -1},
		{map[int]int32{0: 1, 1: 2}, 2},
	} {
		t.Run(fmt.Sprint(c.culprit), func(t *testing.T) {
			m, d := machine(t, cudatest.Config{})
			newSpin(m)
			group := joinOn(t, d, []int{0, 0, 0}, weft.WithDeadline(2*time.Second))
			ctx := testContext(t)
			for range 2 {
				errs := each(group, func(comm *weft.Comm) error {
					peer, waits := c.peers[comm.Rank()]
					if !waits {
						return nil
					}
					time.Sleep(time.Duration(comm.Rank()) * 20 * time.Millisecond) // deadlines pass one after another
					return giveUp(comm, peer)
				})
				for r := range c.peers {
					blames(t, r, errs[r], c.culprit, weft.ErrTimeout)
					if c.culprit < 0 && !strings.Contains(errs[r].Error(), "rank 2 for rank 0 in dispatch of epoch 41") {
						t.Errorf("rank %d does not list the circle: %v", r, errs[r])
					}
				}
				must(t, group, func(c *weft.Comm) error {
					return errors.Join(c.SetMask(ctx), c.Err(), c.Operations().VerifySame(ctx, "agree", "", nil))
				})
			}
		})
	}
}

// TestDeviceRecordOddities: records that name nobody who could be to blame fail the operation all
// the same.
func TestDeviceRecordOddities(t *testing.T) {
	for name, c := range map[string]struct {
		cause uint32
		peer  int32
	}{
		"aborted without a word": {device.CauseAbort, 1}, "nobody": {device.CauseTimeout, -1},
		"no such rank": {device.CauseTimeout, 64}, "masked": {device.CauseTimeout, 2}, "no such cause": {77, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := machine(t, cudatest.Config{})
			newSpin(m)
			group := joinOn(t, d, []int{0, 0, 0})
			ctx := testContext(t)
			rest := group[:2]
			must(t, rest, func(c *weft.Comm) error { return c.SetMask(ctx, 2) })
			if err := launch(group[0], "give up", group[0].Operations().WaitRecord(), c.cause, c.peer); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				blames(t, 0, group[0].Err(), 0, weft.ErrAborted)
				blames(t, 1, group[1].Err(), 0, weft.ErrAborted)
			}
			must(t, rest, func(c *weft.Comm) error { return errors.Join(c.SetMask(ctx, 2), c.Err()) })
		})
	}
}

// TestDeviceWaitsForItself: a rank whose kernel has waited for another of its own is to blame.
func TestDeviceWaitsForItself(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	newSpin(m)
	group := joinOn(t, d, []int{0, 0})
	record := group[0].Operations().WaitRecord()
	if err := launch(group[0], "give up", record, uint32(device.CauseTimeout), int32(0)); err != nil {
		t.Fatal(err)
	}
	for r, c := range group {
		blames(t, r, c.Err(), 0, weft.ErrTimeout)
	}
}

// TestDeviceMismatch: both ranks whose calls differ say how. So does the one whose device left for the
// abort word before it had seen the other's call, or left no record. The others hear who gave up.
func TestDeviceMismatch(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	newSpin(m)
	group := joinOn(t, d, []int{0, 0, 0})
	ctx := testContext(t)
	giveUp := func(c *weft.Comm, cause uint32, peer int32) {
		if err := launch(c, "give up", c.Operations().WaitRecord(), cause, peer); err != nil {
			t.Fatal(err)
		}
	}
	says := func(who int, err error, words string) {
		blames(t, who, err, 1-who, weft.ErrMismatch)
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("rank %d does not say %q: %v", who, words, err)
		}
	}
	for _, aborted := range []bool{false, true} {
		giveUp(group[0], device.CauseMismatch, 1)
		says(0, group[0].Err(), "it calls 3, this rank 7")
		if aborted {
			giveUp(group[1], device.CauseAbort, 0)
		}
		for range 2 {
			says(1, group[1].Err(), "it calls 7, this rank 3")
		}
		blames(t, 2, group[2].Err(), 0, weft.ErrAborted)
		must(t, group, func(c *weft.Comm) error { return errors.Join(c.SetMask(ctx), c.Err()) })
	}
	group[0].Abort() // what it said before is over
	blames(t, 1, group[1].Err(), 0, weft.ErrAborted)
}

// TestDeviceRecordIsLate: what the rank was told before its device gave up counts.
func TestDeviceRecordIsLate(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	newSpin(m)
	group := joinOn(t, d, []int{0, 0, 0})
	group[1].Abort()
	blames(t, 0, giveUp(group[0], 2), 1, weft.ErrAborted)
}

// giveUp lets a wait on the device give up on a peer.
func giveUp(c *weft.Comm, peer int32) error {
	if err := launch(c, "give up", c.Operations().WaitRecord(), uint32(device.CauseTimeout), peer); err != nil {
		return err
	}
	return c.Err()
}

// TestDeviceRecordOfOneThatLeft blames a rank that left, which kernels cannot see.
func TestDeviceRecordOfOneThatLeft(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	newSpin(m)
	group := joinOn(t, d, []int{0, 0})
	if err := group[1].Close(); err != nil {
		t.Fatal(err)
	}
	for !group[0].Operations().Waiter().Gone(1) {
		runtime.Gosched()
	}
	blames(t, 0, giveUp(group[0], 1), 1, weft.ErrLeft)
}

// TestDeviceLosesAPeer: kernels find that a port channel has failed, and the host who is to blame.
func TestDeviceLosesAPeer(t *testing.T) {
	channelTo := func(rank int, why error) error { return &weft.PeerError{Rank: rank, Op: "channel", Err: why} }
	for name, c := range map[string]struct {
		why  error                          // of this rank's channels
		soon func(group []*weft.Comm) error // at about the same time
		want int
		err  error
		says string
	}{
		"nobody knows why": {want: 1, err: weft.ErrDied, says: "the port channel to it has failed"},
		"the connection broke": {
			why: channelTo(1, fmt.Errorf("%w: by a test", fabric.ErrLost)), want: 1, err: weft.ErrDied,
			says: "connection lost: by a test",
		},
		"the fabric stands still": {why: channelTo(1, fabric.ErrTimeout), want: 1, err: weft.ErrTimeout},
		"an error of this rank's": {why: fabric.ErrInvalid, want: 0, err: weft.ErrAborted},
		"it leaves": {
			why: channelTo(1, fabric.ErrLost), soon: func(group []*weft.Comm) error { return group[1].Close() },
			want: 1, err: weft.ErrLeft,
		},
		"a third rank gives up": {
			why: fabric.ErrLost, soon: func(group []*weft.Comm) error { group[2].Abort(); return nil },
			want: 2, err: weft.ErrAborted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := machine(t, cudatest.Config{})
			newSpin(m)
			group := joinOn(t, d, []int{0, 0, 0})
			ctx := testContext(t)
			ops := group[0].Operations()
			ops.Carries(func(int) error { return errors.New("of what has been taken back") })()
			defer ops.Carries(func(rank int) error {
				if rank != 1 {
					return nil
				}
				return c.why
			})()
			if err := launch(group[0], "give up", ops.WaitRecord(), uint32(device.CauseLost), int32(1)); err != nil {
				t.Fatal(err)
			}
			soon := make(chan error, 1)
			go func() {
				time.Sleep(20 * time.Millisecond)
				if c.soon == nil {
					soon <- nil
					return
				}
				soon <- c.soon(group)
			}()
			for range 2 {
				err := group[0].Err()
				blames(t, 0, err, c.want, c.err)
				if err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%q does not say %q", err, c.says)
				}
			}
			if err := <-soon; err != nil {
				t.Error(err)
			}
			blames(t, 2, group[2].Err(), c.want, c.err)
			if c.err != weft.ErrLeft {
				must(t, group, func(c *weft.Comm) error { return errors.Join(c.SetMask(ctx), c.Err()) })
			}
		})
	}
}

// TestSetMaskWaitsForTheDevice: a rank that has a kernel running does not go on, nor do the others.
func TestSetMaskWaitsForTheDevice(t *testing.T) {
	m, d := machine(t, cudatest.Config{Devices: 2})
	s := newSpin(m)
	group := joinOn(t, d, []int{0, 1})
	ctx := testContext(t)
	stuck := make(chan error)
	go func() { stuck <- launch(group[0], "stuck") }()
	<-s.started
	group[0].Abort()
	masked := make(chan error, 2)
	for _, c := range group {
		go func() { masked <- c.SetMask(ctx) }()
	}
	// The other has published its aim, the one with the kernel must not have: nothing to wait for
	// but that nothing happens.
	select {
	case err := <-masked:
		t.Fatalf("went on beside a kernel: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	s.let.Store(true)
	if err := errors.Join(<-stuck, <-masked, <-masked); err != nil {
		t.Fatal(err)
	}
}

func TestSetMaskBesideAKernelThatStays(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	s := newSpin(m)
	group := joinOn(t, d, []int{0}, weft.WithDeadline(30*time.Millisecond))
	stuck := make(chan error)
	go func() { stuck <- launch(group[0], "stuck") }()
	<-s.started
	err := group[0].SetMask(testContext(t))
	if !errors.Is(err, weft.ErrTimeout) || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("set mask: %v", err)
	}
	short, cancel := context.WithTimeout(testContext(t), time.Millisecond)
	defer cancel()
	if err := group[0].SetMask(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("set mask with a short context: %v", err)
	}
	s.let.Store(true)
	if err := errors.Join(<-stuck, group[0].SetMask(testContext(t)), group[0].Err()); err != nil {
		t.Error(err)
	}
}

// TestWaitInCapture: a wait for a stream that captures is refused, and the capture goes on.
func TestWaitInCapture(t *testing.T) {
	_, d := machine(t, cudatest.Config{})
	c := joinOn(t, d, []int{0})[0]
	stream := c.Device().Stream()
	graph, err := stream.Capture(func() error {
		if err := c.Wait(testContext(t), nil); !errors.Is(err, weft.ErrUnsupported) {
			t.Errorf("a wait in a capture: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(graph.Close(), c.Wait(testContext(t), nil)); err != nil {
		t.Error(err)
	}
}

func TestWaitEnds(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	s := newSpin(m)
	group := joinOn(t, d, []int{0}, weft.WithDeadline(40*time.Millisecond))
	stuck := make(chan error)
	go func() { stuck <- launch(group[0], "stuck") }()
	<-s.started
	if err := group[0].Wait(testContext(t), nil); !errors.Is(err, weft.ErrTimeout) ||
		!strings.Contains(err.Error(), "has not ended") {
		t.Errorf("a wait for a kernel that stays: %v", err)
	}
	short, cancel := context.WithTimeout(testContext(t), 8*time.Millisecond)
	defer cancel()
	if err := group[0].Wait(short, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait with a short context: %v", err)
	}
	s.let.Store(true)
	if err := errors.Join(<-stuck, group[0].Wait(testContext(t), nil)); err != nil {
		t.Error(err)
	}
}

// TestCloseBesideAKernel: memory does not go from under a kernel.
func TestCloseBesideAKernel(t *testing.T) {
	m := cudatest.New(cudatest.Config{})
	d, err := m.Open()
	if errors.Is(err, cuda.ErrUnsupported) {
		t.Skip(err)
	}
	s := newSpin(m)
	cu := primary(t, d, 0)
	group, errs := joinEach(t, []weft.Option{weft.WithDevice(cu), weft.WithDeadline(30 * time.Millisecond)})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	w, err := group[0].Alloc(testContext(t), 8)
	if err != nil {
		t.Fatal(err)
	}
	stuck := make(chan error)
	go func() { stuck <- launch(group[0], "stuck") }()
	<-s.started
	if err := group[0].Close(); !errors.Is(err, weft.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	if m.Bytes(w.Pointer(), 8) == nil {
		t.Error("the window is gone")
	}
	s.let.Store(true)
	if err := errors.Join(<-stuck, w.Close()); err != nil {
		t.Error(err)
	}
}

// TestMirror bounds how old a copied abort word is, loosely: the machine may be busy.
func TestMirror(t *testing.T) {
	m, d := machine(t, cudatest.Config{})
	m.Fail("cuMemHostRegister", 0, cuda.ErrNotSupported)
	c := joinOn(t, d, []int{0})[0]
	bytes := m.Bytes(c.Operations().AbortWord(), 8)
	word := (*atomic.Uint64)(unsafe.Pointer(&bytes[0]))
	c.Operations().Waiter().Own.Abort(channel.Fault{Cause: channel.CauseTimeout, Rank: 0})
	ctx := testContext(t)
	for word.Load() == 0 {
		if ctx.Err() != nil {
			t.Fatal("the copy does not follow")
		}
		runtime.Gosched()
	}
}
