package softnic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
)

const (
	number        = 0x123456
	nearKey       = 0x1111
	farKey        = 0x2222
	readKey       = 0x3333 // nobody may write there
	nearAt        = 0x7f0000001000
	farAt         = 0x7fab00000040
	regionBytes   = 4096
	homeAt        = nearAt + regionBytes - 64
	registerBytes = 512
)

// writer is a host that writes entries as rdma-core does, with the doorbell of kernels.
type writer struct {
	t           testing.TB
	nic         *softnic.NIC
	queue       *softnic.Queue
	memory      softnic.Memory
	near, far   []byte
	next, taken uint64
	log         uint
}

// words is memory that is aligned to 64 bytes.
func words(n int) []byte {
	all := make([]byte, n+64)
	return all[64-uintptr(unsafe.Pointer(&all[0]))%64:][:n:n]
}

func newWriter(t testing.TB, o softnic.Options, depth int) *writer {
	t.Helper()
	w := &writer{t: t, nic: softnic.New(o), near: words(regionBytes), far: words(regionBytes), log: 1}
	for 1<<w.log < depth {
		w.log++
	}
	w.memory = softnic.Memory{
		Send: words(depth * mlx5.EntryBytes), Completions: words(mlx5.CompletionBytes << w.log), Record: words(8),
		Consumer: words(8), Register: words(8),
	}
	for _, r := range []softnic.Region{
		{Key: nearKey, Address: nearAt, Bytes: w.near},
		{Key: farKey, Address: farAt, Bytes: w.far, Access: softnic.RemoteWrite | softnic.RemoteAtomic},
		{Key: readKey, Address: farAt, Bytes: w.far},
	} {
		if err := w.nic.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.queue, err = w.nic.Connect(number, w.memory); err != nil {
		t.Fatal(err)
	}
	return w
}

// put writes an entry, and does not ring.
func (w *writer) put(e mlx5.Entry) {
	w.t.Helper()
	e.Index, e.Queue = uint16(w.next), number
	slot := w.memory.Send[w.next*mlx5.EntryBytes%uint64(len(w.memory.Send)):]
	if err := e.Encode((*[mlx5.EntryBytes]byte)(slot)); err != nil {
		w.t.Fatal(err)
	}
	w.next++
}

func (w *writer) record(slot int, value uint32) {
	(*atomic.Uint32)(unsafe.Pointer(&w.memory.Record[4*slot])).Store(value)
}

func (w *writer) register(value uint64) {
	(*atomic.Uint64)(unsafe.Pointer(&w.memory.Register[0])).Store(value)
}

func (w *writer) ring() {
	w.record(mlx5.SendRecordAt, mlx5.SendRecord(w.next))
	w.register(mlx5.Register(w.next, number))
}

func (w *writer) post(all ...mlx5.Entry) {
	w.t.Helper()
	for _, e := range all {
		w.put(e)
	}
	w.ring()
}

// settle lets the card do all that it can.
func (w *writer) settle() {
	for idle := 0; idle < 50; idle++ {
		if w.nic.Step() {
			idle = 0
		}
	}
}

// poll reads the next completion, if there is one.
func (w *writer) poll() (mlx5.Completion, bool) {
	at := w.taken * mlx5.CompletionBytes % uint64(len(w.memory.Completions))
	c, ok := mlx5.DecodeCompletion((*[mlx5.CompletionBytes]byte)(w.memory.Completions[at:]), w.taken, w.log)
	if ok {
		w.taken++
		(*atomic.Uint32)(unsafe.Pointer(&w.memory.Consumer[0])).Store(mlx5.ConsumerRecord(w.taken))
	}
	return c, ok
}

// wait steps until there is a completion.
func (w *writer) wait() mlx5.Completion {
	w.t.Helper()
	for range 1 << 20 {
		if c, ok := w.poll(); ok {
			return c
		}
		w.nic.Step()
	}
	w.t.Fatalf("no completion %d after %d entries: %v", w.taken, w.next, w.nic.Check())
	return mlx5.Completion{}
}

// fine reports mistakes that the card has found.
func (w *writer) fine() {
	w.t.Helper()
	if err := w.nic.Check(); err != nil {
		w.t.Error(err)
	}
}

func far(at uint64) mlx5.Range { return mlx5.Range{Address: farAt + at, Key: farKey} }

func near(at uint64, n uint32) mlx5.Range {
	return mlx5.Range{Address: nearAt + at, Key: nearKey, Bytes: n}
}

func write(to, from uint64, n uint32) mlx5.Entry {
	return mlx5.Entry{Opcode: mlx5.Write, Remote: far(to), Local: near(from, n)}
}

func signalled(e mlx5.Entry) mlx5.Entry {
	e.Flags |= mlx5.Signalled
	return e
}

var nop = signalled(mlx5.Entry{Opcode: mlx5.Nop})

func inline(to uint64, b ...byte) mlx5.Entry {
	return mlx5.Entry{Opcode: mlx5.Write, Remote: far(to), Inline: b}
}

func add(to, value uint64) mlx5.Entry {
	home := mlx5.Range{Address: homeAt, Key: nearKey, Bytes: 8}
	return mlx5.Entry{Opcode: mlx5.FetchAdd, Remote: far(to), Local: home, Add: value}
}

// kinds are the behaviours under which every write arrives in order.
func kinds(each func(softnic.Options)) {
	for seed := range uint64(30) {
		each(softnic.Options{Seed: seed})
	}
}

// TestOperations: writes of every size, inline or not, adds of both widths and fields of them.
func TestOperations(t *testing.T) {
	kinds(func(o softnic.Options) {
		w := newWriter(t, o, 16)
		for i := range w.near {
			w.near[i] = byte(i*7 + i>>8)
		}
		for _, n := range []uint32{0, 1, 3, 4, 7, 8, 63, 64, 65, 1000, 4001} {
			for _, at := range []uint64{0, 1, 5, 8, 64} {
				if uint64(n)+at > regionBytes {
					continue
				}
				clear(w.far)
				w.post(signalled(write(at, at/2, n)))
				if c := w.wait(); c.Err() != nil || c.Opcode != mlx5.Write || c.Index != uint16(w.next-1) {
					t.Fatalf("completion %+v", c)
				}
				if !bytes.Equal(w.far[at:][:n], w.near[at/2:][:n]) || bytes.Count(w.far, []byte{0}) < regionBytes-int(n) {
					t.Fatalf("seed %d: %d bytes at %d are wrong", o.Seed, n, at)
				}
			}
		}
		clear(w.far)
		w.post(inline(0, 1, 2, 3, 4, 5, 6, 7, 8), inline(8, 9, 10, 11, 12), inline(13, 13),
			signalled(inline(20, make([]byte, 28)...)))
		w.wait()
		if want := "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x00\x0d\x00"; string(w.far[:15]) != want {
			t.Fatalf("% x", w.far[:16])
		}
		masked := add(32, 0xffffffff)
		masked.Opcode, masked.Modifier, masked.Local.Bytes = mlx5.MaskedFetchAdd, mlx5.Masked4, 4
		pair := add(40, 0x00000001ffffffff) // two fields of 32 bits
		pair.Opcode, pair.Modifier, pair.Compare = mlx5.MaskedFetchAdd, mlx5.Masked8, 1<<63|1<<31
		w.post(add(24, 5), add(24, ^uint64(0)), masked, masked, pair, pair, signalled(add(24, 0)))
		w.wait()
		words := []uint64{4, 0xfffffffe, 0x00000002fffffffe}
		for i, want := range words {
			if got := binary.NativeEndian.Uint64(w.far[24+8*i:]); got != want {
				t.Errorf("seed %d: word %d is %#x, want %#x", o.Seed, i, got, want)
			}
		}
		if old := binary.BigEndian.Uint64(w.near[homeAt-nearAt:]); old != 4 {
			t.Errorf("the old value is %#x", old)
		}
		w.fine()
	})
}

// TestWraps: entries of every kind, over the ends of the queues and of the 16-bit index. Each completion finds
// everything before it done.
func TestWraps(t *testing.T) {
	for _, depth := range []int{1, 2, 64, 1 << 10} {
		for _, seed := range []uint64{0, 1, 2} {
			entries := 70_000
			if testing.Short() || seed != 0 && depth != 64 {
				entries = 3000
			}
			w := newWriter(t, softnic.Options{Seed: seed}, depth)
			r := rand.New(rand.NewPCG(seed, uint64(depth)))
			sum, wrong := uint64(0), 0
			for w.next < uint64(entries) {
				n := 1 + r.IntN(depth)
				for i := range n {
					v := r.Uint64()
					binary.NativeEndian.PutUint64(w.near[8*(i%64):], v)
					e := []mlx5.Entry{
						write(8*uint64(i%64), 8*uint64(i%64), 8), add(1024, v),
						inline(1032, binary.NativeEndian.AppendUint64(nil, v)...),
						{Opcode: mlx5.Nop},
					}[r.IntN(4)]
					if e.Opcode == mlx5.FetchAdd {
						sum += v
					}
					if i == n-1 {
						e = signalled(e)
					}
					w.put(e)
					if i == n-1 || r.IntN(8) == 0 {
						w.ring()
					}
				}
				if c := w.wait(); c.Err() != nil || c.Index != uint16(w.next-1) {
					t.Fatalf("entry %d: %+v %v", w.next, c, w.nic.Check())
				}
				if binary.NativeEndian.Uint64(w.far[1024:]) != sum {
					wrong++
				}
			}
			if w.fine(); wrong != 0 {
				t.Errorf("depth %d, seed %d: %d wrong of %d", depth, seed, wrong, w.next)
			}
		}
	}
}

// TestOrder: in order, a flag is never seen before its data; relaxed, it is. A completion never comes before its
// bytes, unless Early.
func TestOrder(t *testing.T) {
	overtakes := func(o softnic.Options) (flags, completions int) {
		for seed := range uint64(40) {
			o.Seed = seed + 1
			w := newWriter(t, o, 16)
			for i := range w.near {
				w.near[i] = 0x55
			}
			w.post(write(0, 0, 512), signalled(inline(1024, 1, 1, 1, 1, 1, 1, 1, 1)))
			early := false
			for done := false; !done; w.nic.Step() {
				whole := bytes.Count(w.far[:512], []byte{0x55}) == 512
				if w.far[1024] != 0 && !whole {
					flags++
					break
				}
				if _, done = w.poll(); done && w.far[1024] == 0 {
					early = true
				}
			}
			if early {
				completions++
			}
			w.fine()
		}
		return flags, completions
	}
	if flags, completions := overtakes(softnic.Options{}); flags != 0 || completions != 0 {
		t.Errorf("in order: %d flags and %d completions came too early", flags, completions)
	}
	if flags, _ := overtakes(softnic.Options{Relaxed: true}); flags == 0 {
		t.Error("relaxed: no flag overtook its data")
	}
	if flags, completions := overtakes(softnic.Options{Early: true}); flags != 0 || completions == 0 {
		t.Errorf("early: %d flags, and %d completions came early", flags, completions)
	}
}

// TestErrors: a queue ends with the completion that a card writes, and flushes all that follows.
func TestErrors(t *testing.T) {
	wrong := func(change func(e *mlx5.Entry)) mlx5.Entry {
		e := write(0, 0, 8)
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		entry mlx5.Entry
		want  mlx5.Syndrome
	}{
		"local key":    {wrong(func(e *mlx5.Entry) { e.Local.Key++ }), mlx5.LocalProtection},
		"local bounds": {wrong(func(e *mlx5.Entry) { e.Local.Address += regionBytes - 7 }), mlx5.LocalProtection},
		"before":       {wrong(func(e *mlx5.Entry) { e.Local.Address = nearAt - 1 }), mlx5.LocalProtection},
		"remote key":   {wrong(func(e *mlx5.Entry) { e.Remote.Key++ }), mlx5.RemoteAccess},
		"permission":   {wrong(func(e *mlx5.Entry) { e.Remote.Key = readKey }), mlx5.RemoteAccess},
		"bounds":       {wrong(func(e *mlx5.Entry) { e.Remote.Address += regionBytes - 7 }), mlx5.RemoteAccess},
		"wrapped":      {wrong(func(e *mlx5.Entry) { e.Remote.Address = ^uint64(0) - 3 }), mlx5.RemoteAccess},
		"inline":       {inline(regionBytes-1, 1, 2), mlx5.RemoteAccess},
		"odd add":      {add(4, 1), mlx5.RemoteRequest},
		"add":          {add(regionBytes, 1), mlx5.RemoteAccess},
		"swap": {
			func() mlx5.Entry { e := add(0, 1); e.Opcode = mlx5.CompareSwap; return e }(), mlx5.RemoteRequest,
		},
	} {
		kinds(func(o softnic.Options) {
			w := newWriter(t, o, 16)
			w.post(write(0, 0, 16), c.entry, write(64, 0, 16), nop)
			w.far[64] = 7
			failed := w.wait()
			if failed.Kind != mlx5.KindError || failed.Syndrome != c.want || failed.Index != 1 ||
				failed.Opcode != c.entry.Opcode {
				t.Errorf("%s: %+v", name, failed)
			}
			for i := range uint16(2) {
				if f := w.wait(); f.Syndrome != mlx5.Flushed || f.Index != 2+i {
					t.Errorf("%s: then %+v", name, f)
				}
			}
			if w.far[64] != 7 {
				t.Errorf("%s: a flushed write landed", name)
			}
			w.fine()
		})
	}
}

// TestFaults: lost rings are made up for by the record; retries end well or not; the peer goes; a stalled queue
// fills and goes on.
func TestFaults(t *testing.T) {
	kinds(func(o softnic.Options) {
		w := newWriter(t, o, 16)
		w.queue.Drop(1)
		w.post(nop)
		w.wait()
		w.queue.Fail(1, softnic.Fault{Retries: 7})
		w.post(signalled(inline(0, 9)))
		if c := w.wait(); c.Err() != nil || w.far[0] != 9 {
			t.Errorf("after retries: %+v", c)
		}
		w.queue.Stall(true)
		for range 16 {
			w.post(nop)
		}
		w.settle()
		if _, ok := w.poll(); ok || w.queue.Executed() != 2 {
			t.Error("a stalled queue went on")
		}
		w.queue.Stall(false)
		for range 16 {
			w.wait()
		}
		w.queue.Fail(w.next, softnic.Fault{Retries: 3, Syndrome: 0x77, Vendor: 0x12})
		w.post(write(0, 0, 1))
		if c := w.wait(); c.Syndrome != 0x77 || c.Vendor != 0x12 {
			t.Errorf("an unknown syndrome: %+v", c)
		}
		w.fine()
		for _, s := range []mlx5.Syndrome{mlx5.NotReady, mlx5.RemoteOperation} {
			w := newWriter(t, o, 16)
			w.queue.Fail(0, softnic.Fault{Retries: 5, Syndrome: s})
			if w.post(inline(0, 9)); w.wait().Syndrome != s || w.far[0] == 9 {
				t.Errorf("%v was not reported", s)
			}
		}
		w = newWriter(t, o, 16)
		w.queue.Kill()
		if w.post(inline(0, 9)); w.wait().Syndrome != mlx5.RetryExceeded {
			t.Error("a dead peer was not reported")
		}
		w = newWriter(t, o, 16)
		w.post(write(0, 0, 512))
		w.nic.Step()
		w.nic.Deregister(farKey)
		w.settle()
		w.post(signalled(inline(0, 9)))
		if c := w.wait(); c.Syndrome != mlx5.RemoteAccess && c.Syndrome != mlx5.Flushed {
			t.Errorf("a write to closed memory: %+v", c)
		}
		w.fine()
	})
}

// TestViolations: mistakes of a writer that a card would not tell of are found.
func TestViolations(t *testing.T) {
	const depth = 4
	for want, mistake := range map[string]func(w *writer){
		"the register names queue pair 0x99": func(w *writer) {
			w.put(nop)
			w.record(mlx5.SendRecordAt, mlx5.SendRecord(1))
			w.register(mlx5.Register(1, 0x99))
		},
		"the register announces 0x1, the record 0x0": func(w *writer) { // the receive queue's word was written
			w.put(nop)
			w.record(mlx5.ReceiveRecord, mlx5.SendRecord(1))
			w.register(mlx5.Register(1, number))
		},
		"the register goes from 0x2 to 0x1": func(w *writer) {
			w.post(nop, nop)
			w.settle()
			w.register(mlx5.Register(1, number))
		},
		"the record holds 0x10001": func(w *writer) {
			w.put(nop)
			w.record(mlx5.SendRecordAt, mlx5.ConsumerRecord(0x10001))
			w.register(mlx5.Register(1, number))
		},
		"entry 1 has index": func(w *writer) {
			w.put(nop)
			w.next++
			w.ring()
		},
		"entry 0 names queue pair": func(w *writer) {
			w.put(nop)
			w.memory.Send[5]++
			w.ring()
		},
		"5 entries outstanding; the queue has room for 4": func(w *writer) {
			w.queue.Stall(true)
			w.post(nop, nop, nop)
			w.settle()
			w.post(nop, nop)
		},
		"changed before": func(w *writer) {
			w.post(nop, nop)
			w.settle()
			w.memory.Send[15] ^= 1
			w.memory.Send[mlx5.EntryBytes+15] ^= 1
		},
		"4 unsignalled entries in a row": func(w *writer) {
			w.post(inline(0, 1), inline(0, 1), inline(0, 1), inline(0, 1))
		},
		"5 completions were taken of 4": func(w *writer) {
			w.post(nop, nop, nop, nop)
			w.settle()
			w.taken = 4
			(*atomic.Uint32)(unsafe.Pointer(&w.memory.Consumer[0])).Store(mlx5.ConsumerRecord(5))
		},
		"the consumer record holds 0x1000000": func(w *writer) {
			(*atomic.Uint32)(unsafe.Pointer(&w.memory.Consumer[0])).Store(mlx5.ReadRecord(1 << 24))
		},
	} {
		kinds(func(o softnic.Options) {
			w := newWriter(t, o, depth)
			mistake(w)
			w.settle()
			if err := w.nic.Check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("seed %d: want %q, found %v", o.Seed, want, err)
			}
		})
	}
}

// TestLateRegister: a card that sees the record first may have carried out and completed entries before it sees the
// register that tells of them. The next ring may then go on by more than the queue's depth.
func TestLateRegister(t *testing.T) {
	kinds(func(o softnic.Options) {
		w := newWriter(t, o, 2)
		for range 200 {
			w.put(nop)
			w.record(mlx5.SendRecordAt, mlx5.SendRecord(w.next))
			w.register(mlx5.Register(w.next, number))
			w.put(nop)
			w.record(mlx5.SendRecordAt, mlx5.SendRecord(w.next))
			w.settle() // with the record of both, and the register of one
			both := w.queue.Executed() == w.next
			if both {
				w.wait()
				w.wait()
			}
			w.register(mlx5.Register(w.next, number))
			if !both {
				w.wait()
				w.wait()
			}
			w.put(nop)
			w.put(nop)
			w.ring()
			w.wait()
			w.wait()
		}
		w.fine()
	})
}

// TestRefusals: memory, numbers and regions that do not fit.
func TestRefusals(t *testing.T) {
	good := func() softnic.Memory {
		return softnic.Memory{
			Send: words(4 * 64), Completions: words(4 * 64), Record: words(8), Consumer: words(8),
			Register: words(registerBytes),
		}
	}
	for name, change := range map[string]func(m *softnic.Memory){
		"no send queue":     func(m *softnic.Memory) { m.Send = nil },
		"three entries":     func(m *softnic.Memory) { m.Send = m.Send[:3*64] },
		"few completions":   func(m *softnic.Memory) { m.Completions = m.Completions[:128] },
		"three completions": func(m *softnic.Memory) { m.Send, m.Completions = m.Send[:64], m.Completions[:3*64] },
		"half a record":     func(m *softnic.Memory) { m.Record = m.Record[:4] },
		"odd register":      func(m *softnic.Memory) { m.Register = m.Register[1:9] },
		"too deep": func(m *softnic.Memory) {
			m.Send, m.Completions = words(2*mlx5.MaxDepth*64), words(2*mlx5.MaxDepth*64)
		},
	} {
		m := good()
		change(&m)
		if _, err := softnic.New(softnic.Options{}).Connect(1, m); !errors.Is(err, softnic.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := softnic.New(softnic.Options{})
	for _, number := range []uint32{0, 1 << 24} {
		if _, err := n.Connect(number, good()); !errors.Is(err, softnic.ErrInvalid) {
			t.Errorf("queue pair %#x: %v", number, err)
		}
	}
	if _, err := n.Connect(1, good()); err != nil {
		t.Error(err)
	}
	if _, err := n.Connect(1, good()); !errors.Is(err, softnic.ErrInvalid) {
		t.Errorf("the same number: %v", err)
	}
	for name, r := range map[string]softnic.Region{
		"empty": {Key: 1}, "wraps": {Key: 2, Address: ^uint64(0) - 3, Bytes: make([]byte, 8)},
	} {
		if err := n.Register(r); !errors.Is(err, softnic.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHalves: a writer that alternates between the register's halves, and stores the entry's own first 8 bytes, as
// rdma-core does.
func TestHalves(t *testing.T) {
	kinds(func(o softnic.Options) {
		w := newWriter(t, o, 8)
		register := words(registerBytes)
		w.memory.Register = register
		w.nic = softnic.New(o)
		var err error
		if w.queue, err = w.nic.Connect(number, w.memory); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			w.put(nop)
			w.record(mlx5.SendRecordAt, mlx5.SendRecord(w.next))
			slot := w.memory.Send[(w.next-1)%8*mlx5.EntryBytes:]
			at := i % 2 * mlx5.RegisterHalf
			(*atomic.Uint64)(unsafe.Pointer(&register[at])).Store(binary.NativeEndian.Uint64(slot))
			if i%3 == 2 {
				for range 3 {
					w.wait()
				}
			}
		}
		w.fine()
	})
}

// BenchmarkEntries is what an entry costs the card and a writer on the same goroutine: writes of 64 bytes.
func BenchmarkEntries(b *testing.B) {
	for _, seed := range []uint64{0, 1} {
		b.Run(fmt.Sprintf("seed=%d", seed), func(b *testing.B) {
			const batch = 64
			w := newWriter(b, softnic.Options{Seed: seed}, 2*batch)
			for b.Loop() {
				for i := range uint64(batch - 1) {
					w.put(write(64*(i%32), 0, 64))
				}
				w.post(nop)
				w.wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(w.next), "ns/entry")
		})
	}
}

// TestDisconnect: what a queue pair has begun lands before it is taken out. Nothing of its memory is looked at later,
// and another one may have its number.
func TestDisconnect(t *testing.T) {
	kinds(func(o softnic.Options) {
		w := newWriter(t, o, 8)
		copy(w.near, bytes.Repeat([]byte{7}, 256))
		w.post(write(0, 0, 256), nop)
		for w.queue.Executed() < 2 {
			w.nic.Step()
		}
		w.nic.Disconnect(w.queue)
		if !bytes.Equal(w.far[:256], w.near[:256]) {
			t.Errorf("seed %d: bytes are missing", o.Seed)
		}
		clear(w.memory.Register)
		w.settle()
		w.post(write(256, 0, 64), nop)
		w.settle()
		if w.far[256] != 0 {
			t.Errorf("seed %d: a queue pair that was taken out writes", o.Seed)
		}
		if _, err := w.nic.Connect(number, w.memory); err != nil {
			t.Error(err)
		}
		w.fine()
	})
}
