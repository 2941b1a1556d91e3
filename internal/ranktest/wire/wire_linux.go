package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Wire is two hosts and what is between them.
type Wire struct {
	hosts [2]*os.File // namespaces
	ends  [2]*os.File // TUN devices

	mu          sync.Mutex
	ways        [2]Way // from each host
	connections map[connection]*traffic
	resetting   int // connections from this number on are reset; -1: none
	resets      int
}

// traffic is what is known of a connection: how many were begun before, and how far each host has said that it has
// received the other's bytes.
type traffic struct {
	number   int
	received [2]received
}

// received are a host's acknowledgements: the first and the last one.
type received struct {
	first, last uint32
	begun       bool
}

// Way is what becomes of packets from a host.
type Way struct {
	Delay time.Duration
	Loss  float64 // the share that is lost
	Cut   bool    // all are lost
}

// Interface is the name of that of either host.
const Interface = "wire"

// New makes a wire on which nothing is lost.
func New(t testing.TB) *Wire {
	t.Helper()
	w := &Wire{connections: map[connection]*traffic{}, resetting: -1}
	for i := range w.hosts {
		if err := w.open(i); err != nil {
			w.close()
			if os.Getenv("WEFT_REQUIRE_NETNS") == "1" {
				t.Fatalf("no network namespace with a TUN device, and WEFT_REQUIRE_NETNS=1: %v", err)
			}
			t.Skipf("no network namespace with a TUN device: %v", err)
		}
	}
	var carriers sync.WaitGroup
	for from := range w.ends {
		carriers.Go(func() { w.carry(from) })
	}
	t.Cleanup(func() {
		w.close()
		carriers.Wait()
	})
	return w
}

func (w *Wire) close() {
	for _, f := range []*os.File{w.ends[0], w.ends[1], w.hosts[0], w.hosts[1]} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Address is a host's.
func (w *Wire) Address(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 78, 0, byte(host + 1)})
}

// In runs f in a host: sockets that it makes and processes that it starts are the host's.
func (w *Wire) In(host int, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(w.hosts[host].Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- f()
	}()
	return <-done
}

// open makes a host.
func (w *Wire) open(host int) error {
	return onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if w.hosts[host], err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(Interface)
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("make a TUN device: %w", err), unix.Close(fd))
		}
		w.ends[host] = os.NewFile(uintptr(fd), "tun") // not before it can be waited for
		if err := configure(Interface, w.Address(host)); err != nil {
			return err
		}
		return configure("lo", netip.Addr{})
	})
}

// configure gives an interface of this thread's namespace an address, if it needs one, and turns it on.
func configure(name string, a netip.Addr) (err error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(s)) }()
	set := func(what string, call uint, fill func(*unix.Ifreq) error) error {
		request, err := unix.NewIfreq(name)
		if err == nil {
			err = fill(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, call, request)
		}
		if err != nil {
			return fmt.Errorf("interface %s: %s: %w", name, what, err)
		}
		return nil
	}
	if a.IsValid() {
		address := func(r *unix.Ifreq) error { return r.SetInet4Addr(a.AsSlice()) }
		if err := set("address", unix.SIOCSIFADDR, address); err != nil {
			return err
		}
		mask := []byte{255, 255, 255, 0}
		if err := set("mask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }); err != nil {
			return err
		}
	}
	return set("turn on", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		return nil
	})
}

// Set makes all packets from a host fare as the way says.
func (w *Wire) Set(from int, way Way) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ways[from] = way
}

// SetBoth is Set for either direction.
func (w *Wire) SetBoth(way Way) {
	w.Set(0, way)
	w.Set(1, way)
}

// Connections is how many TCP connections were begun so far.
func (w *Wire) Connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.connections)
}

// Received is how many bytes of TCP connections a host says to have received so far, in order and each once.
func (w *Wire) Received(host int) (bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.connections {
		r := c.received[host]
		bytes += int(r.last - r.first)
	}
	return bytes
}

// Reset resets, from the given number on, each connection on which anything is sent from now on, until Repair.
func (w *Wire) Reset(from int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resetting = from
}

// Repair ends Reset, and returns how many packets were answered with a reset.
func (w *Wire) Repair() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resetting = -1
	return w.resets
}

// packet is one that is on its way.
type packet struct {
	due   time.Time
	bytes []byte
}

// mostUnderway is how many packets a way holds. What comes beyond it is lost.
const mostUnderway = 1 << 14

// carry takes packets from a host to the other one, in their order.
func (w *Wire) carry(from int) {
	ordered := make(chan packet, mostUnderway)
	var sending sync.WaitGroup
	sending.Go(func() {
		for p := range ordered {
			time.Sleep(time.Until(p.due))
			_, _ = w.ends[1-from].Write(p.bytes)
		}
	})
	defer sending.Wait()
	defer close(ordered)
	for {
		b := make([]byte, 2048)
		n, err := w.ends[from].Read(b)
		if err != nil {
			return
		}
		way, back := w.judge(from, segment(b[:n]))
		for i, reset := range back {
			_, _ = w.ends[(from+i)%2].Write(reset)
		}
		if way.Cut || len(back) > 0 || rand.Float64() < way.Loss {
			continue
		}
		select {
		case ordered <- packet{time.Now().Add(way.Delay), b[:n]}:
		default:
		}
	}
}

// judge says how a packet fares, and which ones end its connection: one for its sender and one for its receiver.
func (w *Wire) judge(from int, s segment) (way Way, resets [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	way = w.ways[from]
	if !s.tcp() {
		return way, nil
	}
	c := w.connections[s.connection(from)]
	if c == nil {
		c = &traffic{number: len(w.connections)}
		w.connections[s.connection(from)] = c
	}
	if s.flags()&(flagACK|flagReset) == flagACK {
		c.received[from].acknowledge(s.acknowledged())
	}
	if w.resetting < 0 || c.number < w.resetting || s.flags()&(flagReset|flagSYN) != 0 {
		return way, nil
	}
	w.resets++
	return way, [][]byte{s.reset(true), s.reset(false)}
}

func (r *received) acknowledge(n uint32) {
	if !r.begun {
		*r = received{n, n, true}
	}
	if int32(n-r.last) > 0 {
		r.last = n
	}
}
