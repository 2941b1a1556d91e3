package verbstest

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/fabric/mlx5"
	"github.com/weftgo/weft/fabric/softnic"
	"github.com/weftgo/weft/internal/dl"
)

//go:embed source/verbs.c
var source []byte

// Link is the kind of a port's network.
type Link int

// Links.
const (
	InfiniBand Link = 1
	Ethernet   Link = 2
)

// Kind is which protocol goes by a GID.
type Kind int

// Kinds.
const (
	IB    Kind = 0
	RoCE1 Kind = 1
	RoCE2 Kind = 2
)

// GID is a row of a port's table. One that is all zero is empty.
type GID struct {
	Kind  Kind
	Bytes [16]byte
}

// Card is a card with one port.
type Card struct {
	Name    string
	Path    string // /sys/class/infiniband/NAME, or wherever a test has such a folder
	Foreign bool   // no mlx5
	Down    bool
	Link    Link
	LID     int
	MTU     int // a code, from 1 to 5; 0 is 5
	GIDs    []GID
}

// Shape is what queue pairs are like. The zero value is as libmlx5 makes them.
type Shape struct {
	EntryBytes, CompletionBytes int // 0: 64
	// More is how many entries there are for one that was asked for; 0: 4.
	More int
	// Fewer is how many completion queues are made an eighth as large as they were to be.
	Fewer int
}

// Options say which library is made.
type Options struct {
	Old     bool // of rdma-core 33, without dma-bufs
	NoMLX5  bool // without libmlx5
	Softnic softnic.Options
}

// Library is a library, and the card that serves its queue pairs.
type Library struct {
	Folder string
	NIC    *softnic.NIC

	take, answer, card, gid, fail, live, shape, kernel dl.Func

	mu     sync.Mutex
	forget bool
	queues map[uint32]*softnic.Queue
	asked  request
}

// request is what the library asks for: the request of verbs.c.
type request struct {
	kind, local, remote, access             uint32
	number, entries, completions, _         uint32
	address, bytes                          uint64
	sends, done, record, consumer, register uint64
}

// Kinds of requests.
const (
	register = 1 + iota
	deregister
	connect
	disconnect
)

// Permissions that memory is registered with.
const remoteWrite, remoteAtomic = 2, 8

// New makes a library without cards, and has the environment name it. Without a C compiler it skips the test, unless
// WEFT_REQUIRE_CC says that there must be one.
func New(t testing.TB, o Options) *Library {
	t.Helper()
	l := &Library{Folder: t.TempDir(), NIC: softnic.New(o.Softnic), queues: map[uint32]*softnic.Queue{}}
	l.write(t, o)
	t.Setenv("WEFT_LIBIBVERBS", l.Folder)
	file, err := dl.Open(filepath.Join(l.Folder, "libibverbs.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]*dl.Func{
		"fake_take": &l.take, "fake_answer": &l.answer, "fake_card": &l.card, "fake_gid": &l.gid, "fake_fail": &l.fail,
		"fake_live": &l.live, "fake_shape": &l.shape, "fake_kernel": &l.kernel,
	} {
		if *fn, err = file.Lookup(name); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { l.NIC.Serve(ctx) })
	serving.Go(func() {
		for ctx.Err() == nil {
			l.serve()
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
		if n := l.Live(); n != 0 && !l.forget {
			t.Errorf("%d objects of libibverbs were not closed", n)
		}
		if err := l.NIC.Check(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// compiled are the libraries of this process, by whether they are old. Each test has a copy, with cards of its own.
var compiled struct {
	sync.Mutex
	of [2][]byte
}

// write makes the files of the folder.
func (l *Library) write(t testing.TB, o Options) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		const why = "no C compiler (cc)"
		if os.Getenv("WEFT_REQUIRE_CC") == "1" {
			t.Fatal(why + ", and WEFT_REQUIRE_CC=1")
		}
		t.Skip(why)
	}
	library := filepath.Join(l.Folder, "libibverbs.so.1")
	compiled.Lock()
	defer compiled.Unlock()
	image := &compiled.of[word(o.Old)]
	if *image == nil {
		text := filepath.Join(l.Folder, "verbs.c")
		if err := os.WriteFile(text, source, 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", "-o", library, text}
		if o.Old {
			args = append(args, "-DOLD")
		}
		if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
			t.Fatalf("cc: %v\n%s", err, out)
		}
		if *image, err = os.ReadFile(library); err != nil {
			t.Fatal(err)
		}
	} else if err := os.WriteFile(library, *image, 0o700); err != nil {
		t.Fatal(err)
	}
	if !o.NoMLX5 {
		if err := os.Symlink(library, filepath.Join(l.Folder, "libmlx5.so.1")); err != nil {
			t.Fatal(err)
		}
	}
}

// Add plugs a card in.
func (l *Library) Add(c Card) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, path := text(c.Name), text(c.Path)
	if c.MTU == 0 {
		c.MTU = 5
	}
	l.card.Call(dl.Word(&name[0]), dl.Word(&path[0]), word(!c.Foreign), uintptr(c.Link), word(!c.Down), uintptr(c.MTU),
		uintptr(c.LID))
	for _, g := range c.GIDs {
		bytes := g.Bytes
		row := append([]byte(nil), bytes[:]...)
		l.gid.Call(uintptr(g.Kind), dl.Word(&row[0]))
		runtime.KeepAlive(row)
	}
	runtime.KeepAlive(name)
	runtime.KeepAlive(path)
}

// Fail has a call fail, after so many that do not, until it is told another reason; 0 ends that.
func (l *Library) Fail(call string, reason syscall.Errno, after int) {
	name := text(call)
	l.fail.Call(dl.Word(&name[0]), uintptr(reason), uintptr(after))
	runtime.KeepAlive(name)
}

// Shape changes what queue pairs are like from now on.
func (l *Library) Shape(s Shape) {
	or := func(n, otherwise int) uintptr {
		if n == 0 {
			n = otherwise
		}
		return uintptr(n)
	}
	l.shape.Call(or(s.EntryBytes, mlx5.EntryBytes), or(s.CompletionBytes, mlx5.CompletionBytes), or(s.More, 4),
		uintptr(s.Fewer))
}

// Kernel says whether the kernel has RDMA.
func (l *Library) Kernel(there bool) { l.kernel.Call(word(there)) }

// Live is how many objects are open.
func (l *Library) Live() int { return int(int32(l.live.Call())) }

// Forget has the end of the test not ask for objects that are open.
func (l *Library) Forget() { l.forget = true }

// Queues are the queue pairs that are connected, by their number.
func (l *Library) Queues() map[uint32]*softnic.Queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[uint32]*softnic.Queue, len(l.queues))
	for number, q := range l.queues {
		all[number] = q
	}
	return all
}

// serve does what the library asks for, if it does so within some milliseconds.
func (l *Library) serve() {
	if int32(l.take.Call(dl.Word(&l.asked), 5)) == 0 {
		return
	}
	reason := syscall.Errno(0)
	if err := l.do(&l.asked); err != nil {
		reason = syscall.EINVAL
	}
	l.answer.Call(uintptr(reason))
}

func (l *Library) do(r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.kind {
	case register:
		var may softnic.Access
		if r.access&remoteWrite != 0 {
			may |= softnic.RemoteWrite
		}
		if r.access&remoteAtomic != 0 {
			may |= softnic.RemoteAtomic
		}
		region := softnic.Region{Key: r.local, Address: r.address, Bytes: foreign(r.address, r.bytes)}
		if err := l.NIC.Register(region); err != nil {
			return err
		}
		region.Key, region.Access = r.remote, may
		return l.NIC.Register(region)
	case deregister:
		l.NIC.Deregister(r.local)
		l.NIC.Deregister(r.remote)
	case connect:
		q, err := l.NIC.Connect(r.number, softnic.Memory{
			Send:        foreign(r.sends, uint64(r.entries)*mlx5.EntryBytes),
			Completions: foreign(r.done, uint64(r.completions)*mlx5.CompletionBytes),
			Record:      foreign(r.record, 8), Consumer: foreign(r.consumer, 8), Register: foreign(r.register, 8),
		})
		if err != nil {
			return err
		}
		l.queues[r.number] = q
	case disconnect:
		l.NIC.Disconnect(l.queues[r.number])
		delete(l.queues, r.number)
	}
	return nil
}

// foreign is memory that is not Go's.
func foreign(address, bytes uint64) []byte {
	at := uintptr(address)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes)
}

// text is C's, on the heap.
func text(s string) []byte { return append([]byte(s), 0) }

func word(is bool) uintptr {
	if is {
		return 1
	}
	return 0
}
