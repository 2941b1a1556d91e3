package ibgda_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gpu is a GPU, which must be clean in the end.
func gpu(t testing.TB, c cudatest.Config) (*cudatest.Machine, *cuda.Context) {
	t.Helper()
	m := cudatest.New(c)
	d, err := m.Open()
	check(t, err)
	context, err := d.Devices()[0].Primary()
	check(t, err)
	t.Cleanup(func() {
		if err := errors.Join(context.Close(), m.Check()); err != nil {
			t.Error(err)
		}
	})
	return m, context
}

func gid(kind verbstest.Kind, address string) verbstest.GID {
	return verbstest.GID{Kind: kind, Bytes: netip.MustParseAddr(address).As16()}
}

// roce and ib are cards.
func roce(name, address string) verbstest.Card {
	table := []verbstest.GID{
		gid(verbstest.RoCE1, "fe80::1"),
		gid(verbstest.RoCE2, "fe80::1"),
		{Kind: verbstest.RoCE2},
		gid(verbstest.RoCE1, address),
		gid(verbstest.RoCE2, address),
	}
	return verbstest.Card{Name: name, Link: verbstest.Ethernet, GIDs: table}
}

func ib(name string, lid int, address string) verbstest.Card {
	return verbstest.Card{
		Name: name, Link: verbstest.InfiniBand, LID: lid, MTU: 4, GIDs: []verbstest.GID{gid(verbstest.IB, address)},
	}
}

// A writer writes entries to a queue pair as kernels do, from the host.
type writer struct {
	t       *testing.T
	queue   device.NicQueue
	entries uint64
	done    uint64
}

// memory is what lies at an address. The compiler (Go 1.26) fails where it is inlined into a copy.
//
//go:noinline
func memory(at uint64, n int) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n) }

func word(at uint64) *atomic.Uint32 { return *(**atomic.Uint32)(unsafe.Pointer(&at)) }

// post writes an entry, and rings.
func (w *writer) post(e mlx5.Entry) {
	w.t.Helper()
	e.Index, e.Queue, e.Flags = uint16(w.entries), w.queue.Number, mlx5.Signalled
	slot := w.queue.Entries + (w.entries&uint64(w.queue.Mask))*mlx5.EntryBytes
	check(w.t, e.Encode((*[mlx5.EntryBytes]byte)(memory(slot, mlx5.EntryBytes))))
	w.entries++
	word(w.queue.Record).Store(mlx5.SendRecord(w.entries))
	at := w.queue.Doorbell
	(*(**atomic.Uint64)(unsafe.Pointer(&at))).Store(mlx5.Register(w.entries, w.queue.Number))
}

// complete waits for the next completion.
func (w *writer) complete() mlx5.Completion {
	w.t.Helper()
	size := uint64(1) << w.queue.Log
	at := w.queue.Completions + w.done%size*mlx5.CompletionBytes
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Microsecond) {
		status := word(at + mlx5.StatusAt).Load()
		var entry [mlx5.CompletionBytes]byte
		copy(entry[:], memory(at, mlx5.StatusAt))
		binary.NativeEndian.PutUint32(entry[mlx5.StatusAt:], status)
		if c, written := mlx5.DecodeCompletion(&entry, w.done, uint(w.queue.Log)); written {
			w.done++
			word(w.queue.Consumer).Store(mlx5.ConsumerRecord(w.done))
			return c
		}
	}
	w.t.Fatal("no completion for 30 s")
	return mlx5.Completion{}
}

// exchange connects two cards, and has bytes go both ways, some laps of the queues. It closes all but the cards.
func exchange(t *testing.T, c *cuda.Context, a, b ibgda.Card) {
	t.Helper()
	cards := []ibgda.Card{a, b}
	var queues []ibgda.Queue
	var regions []*ibgda.Region
	var memories []*cuda.HostMemory
	for _, card := range cards {
		q, err := card.NewQueue(3)
		check(t, err)
		m, err := c.AllocHost(1<<16, cuda.HostOptions{})
		check(t, err)
		r, err := card.RegisterHost(m)
		check(t, err)
		queues, regions, memories = append(queues, q), append(regions, r), append(memories, m)
	}
	for i, q := range queues {
		theirs, rest, err := ibgda.DecodeAddress(append(cards[1-i].Address().Append(nil), 7))
		check(t, err)
		if len(rest) != 1 || theirs != cards[1-i].Address() {
			t.Errorf("%+v, and %d bytes of something else", theirs, len(rest))
		}
		check(t, q.Connect(theirs, queues[1-i].Number()))
	}
	for i, q := range queues {
		w := &writer{t: t, queue: q.Kernel()}
		from, to := memories[i].Bytes(), memories[1-i].Bytes()
		near, far := regions[i].Near(), regions[1-i]
		if near.Key != regions[i].LocalKey || near.Bytes != 1<<16 {
			t.Errorf("%+v", near)
		}
		for n := range 3 * (int(w.queue.Mask) + 1) {
			for k := range 5000 {
				from[k] = byte(n + k)
			}
			w.post(mlx5.Entry{
				Opcode: mlx5.Write, Remote: mlx5.Range{Address: far.Address + 9000, Key: far.PeersKey},
				Local: mlx5.Range{Address: near.Address, Key: near.Key, Bytes: 5000},
			})
			if c := w.complete(); c.Err() != nil || !slices.Equal(to[9000:14000], from[:5000]) {
				t.Fatalf("entry %d: %v, or other bytes", n, c.Err())
			}
		}
		w.post(mlx5.Entry{ // beyond the region
			Opcode: mlx5.Write, Remote: mlx5.Range{Address: far.Address + 1<<16 - 4, Key: far.PeersKey}, Inline: from[:8],
		})
		if c := w.complete(); c.Syndrome != mlx5.RemoteAccess {
			t.Errorf("a write beyond the region: %+v", c)
		}
	}
	for i, q := range queues {
		check(t, errors.Join(q.Close(), q.Close(), regions[i].Close(), memories[i].Close()))
	}
}

// TestHardware brings up queue pairs of cards of each network, and writes by them.
func TestHardware(t *testing.T) {
	for name, cards := range map[string][2]verbstest.Card{
		"RoCE over IPv4":     {roce("mlx5_0", "10.0.0.1"), roce("mlx5_1", "10.0.0.2")},
		"RoCE over IPv6":     {roce("mlx5_0", "2001:db8::1"), roce("mlx5_1", "2001:db8::2")},
		"InfiniBand":         {ib("mlx5_0", 3, "fe80::3"), ib("mlx5_1", 4, "fe80::4")},
		"InfiniBand subnets": {ib("mlx5_0", 3, "fe80::3"), ib("mlx5_1", 4, "fe80:0:0:1::4")},
	} {
		t.Run(name, func(t *testing.T) {
			l := verbstest.New(t, verbstest.Options{})
			_, c := gpu(t, cudatest.Config{})
			for _, card := range cards {
				l.Add(card)
			}
			a, err := ibgda.Open(c, "mlx5_0")
			check(t, err)
			b, err := ibgda.Open(c, "mlx5_1")
			check(t, err)
			if a.Name() != "mlx5_0" || b.Name() != "mlx5_1" {
				t.Errorf("%s, %s", a.Name(), b.Name())
			}
			exchange(t, c, a, b)
			exchange(t, c, b, a)
			check(t, errors.Join(a.Close(), b.Close()))
			found, err := ibgda.List()
			check(t, err)
			if len(found) != 2 || found[1].Name != "mlx5_1" || found[1].Err != nil ||
				!strings.HasPrefix(name, found[1].Network) {
				t.Errorf("%+v", found)
			}
		})
	}
}

// TestSoftware is TestHardware of the card made of Go.
func TestSoftware(t *testing.T) {
	_, c := gpu(t, cudatest.Config{})
	a, b := ibgda.OpenSoftware(c), ibgda.OpenSoftware(c)
	exchange(t, c, a, b)
	if _, err := a.NewQueue(0); err == nil {
		t.Error("a queue pair of no entries")
	}
	if _, err := a.RegisterGPU(1<<20, 4096); err == nil {
		t.Error("memory of a GPU was registered")
	}
	q, err := a.NewQueue(16)
	check(t, err)
	other := b.Address().Append(nil)
	other[ibgda.AddressBytes-1]++
	stranger, _, err := ibgda.DecodeAddress(other)
	check(t, err)
	if err := q.Connect(stranger, 1); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Error(err)
	}
	check(t, errors.Join(q.Close(), a.Close(), a.Close(), b.Close()))
	for _, b := range [][]byte{nil, other[:23], append([]byte{9}, other[1:]...), append([]byte{1, 6}, other[2:]...)} {
		if _, _, err := ibgda.DecodeAddress(b); err == nil {
			t.Errorf("%x is an address", b)
		}
	}
}

// TestFirstWithLink: of several cards that are as near as each other the first one is taken that has a link.
func TestFirstWithLink(t *testing.T) {
	l := verbstest.New(t, verbstest.Options{})
	_, c := gpu(t, cudatest.Config{})
	down := roce("mlx5_0", "10.0.0.1")
	down.Down = true
	l.Add(down)
	l.Add(roce("mlx5_1", "10.0.0.2"))
	card, err := ibgda.Open(c, "")
	check(t, err)
	if card.Name() != "mlx5_1" {
		t.Errorf("%s was taken", card.Name())
	}
	check(t, card.Close())
}

// TestRefusals: what a machine refuses is one sentence, and nothing is left of what was begun.
func TestRefusals(t *testing.T) {
	down, foreign, bare, ipv6 := roce("mlx5_0", "10.0.0.1"), roce("efa_0", "10.0.0.1"), roce("mlx5_0", "10.0.0.1"),
		roce("mlx5_1", "2001:db8::2")
	down.Down, foreign.Foreign, bare.GIDs = true, true, bare.GIDs[:1]
	good := roce("mlx5_0", "10.0.0.1")
	type cards = []verbstest.Card
	for name, tt := range map[string]struct {
		options verbstest.Options
		cards   cards
		bare    bool // a kernel without RDMA
		name    string
		call    string
		reason  syscall.Errno
		shape   verbstest.Shape
		want    string
	}{
		"no libmlx5": {options: verbstest.Options{NoMLX5: true}, want: "libmlx5.so.1 was not found: install rdma-core"},
		"old library": {
			options: verbstest.Options{Old: true}, want: "has no symbol ibv_reg_dmabuf_mr: install rdma-core 34 or later",
		},
		"no kernel":  {bare: true, cards: cards{good}, want: "this machine has no RDMA card"},
		"no device":  {want: "this machine has no RDMA card"},
		"not listed": {call: "ibv_get_device_list", reason: syscall.EPERM, want: "ibv_get_device_list: operation not perm"},
		"no name":    {cards: cards{good}, name: "gold", want: "there is no such card: this machine has mlx5_0"},
		"no mlx5":    {cards: cards{foreign}, want: "efa_0 is no mlx5"},
		"down":       {cards: cards{down, foreign}, want: "mlx5_0: port 1 has no link; efa_0 is no mlx5"},
		"no GID":     {cards: cards{bare}, want: "no address of RoCE v2: give its network interface an IP address"},
		"no permission": {
			cards: cards{good}, call: "ibv_open_device", reason: syscall.EACCES,
			want: "open mlx5_0: ibv_open_device: permission denied: give the process",
		},
		"no domain": {cards: cards{good}, call: "ibv_alloc_pd", reason: syscall.ENOMEM, want: "open mlx5_0: ibv_alloc_pd"},
		"no port":   {cards: cards{good}, call: "ibv_query_port", reason: syscall.EIO, want: "port 1: ibv_query_port"},
		"no table":  {cards: cards{good}, call: "ibv_query_gid_ex", reason: syscall.EPERM, want: "address 0: ibv_query"},
		"no completions": {
			cards: cards{good}, call: "ibv_create_cq", reason: syscall.ENOMEM,
			want: "of 1 entries: ibv_create_cq: cannot allocate memory: raise the limit of locked memory",
		},
		"no queue pair": {cards: cards{good}, call: "ibv_create_qp", reason: syscall.EPERM, want: "ibv_create_qp: op"},
		"no addresses":  {cards: cards{good}, call: "mlx5dv_init_obj", reason: syscall.EINVAL, want: "mlx5dv_init_obj: inv"},
		"wide completions": {
			cards: cards{good}, shape: verbstest.Shape{CompletionBytes: 128}, want: "unset MLX5_CQE_SIZE",
		},
		"wide entries": {
			cards: cards{good}, shape: verbstest.Shape{EntryBytes: 128}, want: "entries are 128 bytes apart",
		},
		"small completion queues": {
			cards: cards{good}, shape: verbstest.Shape{More: 64, Fewer: 2}, want: "a completion queue of",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := verbstest.New(t, tt.options)
			_, c := gpu(t, cudatest.Config{})
			for _, card := range tt.cards {
				l.Add(card)
			}
			l.Kernel(!tt.bare)
			l.Fail(tt.call, tt.reason, 0)
			l.Shape(tt.shape)
			card, err := ibgda.Open(c, tt.name)
			if err == nil {
				t.Error(card.Close())
			}
			if !errors.Is(err, ibgda.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	t.Run("connect", func(t *testing.T) {
		l := verbstest.New(t, verbstest.Options{})
		_, c := gpu(t, cudatest.Config{})
		l.Add(good)
		l.Add(ipv6)
		a, err := ibgda.Open(c, "mlx5_0")
		check(t, err)
		b, err := ibgda.Open(c, "mlx5_1")
		check(t, err)
		q, err := a.NewQueue(16)
		check(t, err)
		for _, step := range []struct {
			peer   ibgda.Address
			number uint32
			reason syscall.Errno
			want   string
		}{
			{b.Address(), 1, 0, "its card is on RoCE over IPv6, and this rank's on RoCE over IPv4"},
			{a.Address(), 1, 0, "step 2 of 3: ibv_modify_qp: no route to host"},
			{a.Address(), 1, syscall.EPERM, "step 1 of 3: ibv_modify_qp: operation not permitted"},
		} {
			l.Fail("ibv_modify_qp", step.reason, 0)
			if err := q.Connect(step.peer, step.number); err == nil || !strings.Contains(err.Error(), step.want) {
				t.Errorf("%v, want %q", err, step.want)
			}
		}
		check(t, errors.Join(q.Close(), a.Close(), b.Close()))
	})
	t.Run("close", func(t *testing.T) { // what cannot be closed is told
		l := verbstest.New(t, verbstest.Options{})
		_, c := gpu(t, cudatest.Config{})
		l.Add(good)
		l.Fail("ibv_dealloc_pd", syscall.EBUSY, 0)
		card, err := ibgda.Open(c, "")
		check(t, err)
		if err := card.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Error(err)
		}
		if l.Live() != 2 {
			t.Errorf("%d objects", l.Live())
		}
		l.Forget()
	})
}

// TestMapping: a GPU that cannot be given the doorbell or a queue is a sentence, and pages that queue pairs share are
// given once.
func TestMapping(t *testing.T) {
	l := verbstest.New(t, verbstest.Options{})
	m, c := gpu(t, cudatest.Config{})
	l.Add(roce("mlx5_0", "10.0.0.1"))
	// Send queue, completion queue, a page of records, a page of registers.
	for i, want := range []string{"a queue of", "a queue of", "a queue of", "PeerMappingOverride=1"} {
		m.Fail("cuMemHostRegister", i, cuda.ErrNotPermitted)
		if _, err := ibgda.Open(c, ""); !errors.Is(err, cuda.ErrNotPermitted) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	card, err := ibgda.Open(c, "")
	check(t, err)
	var queues []ibgda.Queue
	pages := map[uint64]int{}
	for range 70 { // records of more than a page
		q, err := card.NewQueue(16)
		check(t, err)
		queues = append(queues, q)
		pages[q.Kernel().Doorbell>>12]++
	}
	if len(pages) > 36 {
		t.Errorf("%d pages of registers of %d queue pairs", len(pages), len(queues))
	}
	for _, q := range queues {
		check(t, q.Close())
	}
	check(t, card.Close())
}

// TestMemory: memory of a GPU is registered by a dma-buf where the GPU gives one, else by its address; what is refused
// is said with the way out.
func TestMemory(t *testing.T) {
	l := verbstest.New(t, verbstest.Options{})
	_, c := gpu(t, cudatest.Config{Attributes: map[cuda.Attribute]int{cuda.DMABuf: 1}})
	_, old := gpu(t, cudatest.Config{})
	l.Add(roce("mlx5_0", "10.0.0.1"))
	for _, tt := range []struct {
		context *cuda.Context
		call    string
		reason  syscall.Errno
		want    string
	}{
		{context: c, call: "ibv_reg_mr", reason: syscall.EFAULT}, // which is not called
		{context: old, call: "ibv_reg_dmabuf_mr", reason: syscall.EFAULT},
		{c, "ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP, "dma-bufs take Linux 5.12"},
		{old, "ibv_reg_mr", syscall.EFAULT, "takes a dma-buf or the module nvidia_peermem"},
		{old, "ibv_reg_mr", syscall.ENOMEM, "raise the limit of locked memory"},
	} {
		card, err := ibgda.Open(tt.context, "")
		check(t, err)
		m, err := tt.context.Alloc(1 << 20)
		check(t, err)
		l.Fail(tt.call, tt.reason, 0)
		r, err := card.RegisterGPU(m.Pointer().Add(1<<12), 5000)
		l.Fail(tt.call, 0, 0)
		switch {
		case tt.want != "":
			if !errors.Is(err, tt.reason) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		case err != nil || r.Address != uint64(m.Pointer())+1<<12 || r.Bytes != 5000 || r.LocalKey == r.PeersKey:
			t.Errorf("%+v, %v", r, err)
		default:
			check(t, errors.Join(r.Close(), r.Close()))
		}
		check(t, errors.Join(card.Close(), m.Close()))
	}
}

// TestSystem: this machine's libraries, if there are any, are asked as others are.
func TestSystem(t *testing.T) {
	_, c := gpu(t, cudatest.Config{})
	found, err := ibgda.List()
	if err != nil && !errors.Is(err, ibgda.ErrUnavailable) {
		t.Error(err)
	}
	t.Logf("%+v, %v", found, err)
	card, err := ibgda.Open(c, "")
	if err == nil { // a GPU that is none can be given no doorbell
		t.Error(card.Close())
	}
	t.Log(err)
	t.Setenv("WEFT_LIBIBVERBS", filepath.Join(t.TempDir(), "nowhere"))
	_, err = ibgda.List()
	if !errors.Is(err, ibgda.ErrUnavailable) || !strings.Contains(err.Error(), "install rdma-core") {
		t.Error(err)
	}
}
