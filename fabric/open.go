package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/libfabric"
	"github.com/weftgo/weft/fabric/internal/provider"
)

// Providers are libfabric's providers that a domain takes, in the order in which Open tries them.
func Providers() []string {
	return []string{"cxi", "efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm", "net"}
}

// refusal is the reason against a provider that may offer all that is asked for.
func refusal(name string, version libfabric.Version) string {
	switch first, _, _ := strings.Cut(name, ";"); first {
	case "shm", "sm2":
		if version < 2<<16 {
			return "it crashes with several writes underway"
		}
		return "it lets writes with a wrong key land"
	case "sockets":
		return "a write takes it milliseconds"
	case "udp":
		return "it stops during long writes"
	}
	return "Weft is not tested with it"
}

// measured remembers which providers were found to work, or why not.
var measured struct {
	sync.Mutex
	results map[libfabric.Config]error
}

// openLibfabric opens an endpoint of the provider that is named, or of the first that is there.
func openLibfabric(ctx context.Context, o Options) (provider.Endpoint, error) {
	library, err := libfabric.Open()
	if err != nil {
		return nil, unsupported("%w", err)
	}
	names := Providers()
	if o.Provider != "" {
		if !slices.Contains(names, o.Provider) {
			return nil, unsupported("provider %s: %s: take one of %s", o.Provider, refusal(o.Provider, library.Version),
				strings.Join(names, ", "))
		}
		names = []string{o.Provider}
	}
	for _, name := range names {
		config := libfabric.Config{
			Provider: name, Source: source(name, o), Unordered: o.Unordered, Devices: o.Devices, Peers: 2,
		}
		if err = measureOnce(ctx, library, config); errors.Is(err, libfabric.ErrNoProvider) {
			continue
		}
		if err == nil {
			config.Peers = o.Size
			var endpoint provider.Endpoint
			if endpoint, err = library.OpenEndpoint(config); err == nil {
				return endpoint, nil
			}
		}
		if errors.Is(err, ErrUnsupported) || ctx.Err() != nil {
			return nil, err
		}
		return nil, unsupported("provider %s%s: %w: name another in FI_PROVIDER, on every rank", name,
			libfabric.At(config.Source), err)
	}
	return nil, absent(library, o, names)
}

// absent is the error of a library that offers none of the providers, and may have been told to.
func absent(library *libfabric.Library, o Options, names []string) error {
	which := fmt.Sprintf("libfabric %v (%s)", library.Version, library.Path)
	list := strings.Join(names, ", ")
	if filter := os.Getenv("FI_PROVIDER"); filter != "" {
		return unsupported("FI_PROVIDER=%s leaves %s no provider that works here and is one of %s: name one of them, or "+
			"unset it, on every rank", filter, which, list)
	}
	return unsupported("no such provider here: %s offers no RMA by %s%s", which, list,
		libfabric.At(source(names[len(names)-1], o)))
}

// source is the address of the interface that a provider is to take. Cards of their own have other addresses than the
// host's sockets, by which ranks meet.
func source(provider string, o Options) string {
	switch base, _, _ := strings.Cut(provider, ";"); {
	case o.Source != "":
		return o.Source
	case base == "tcp" && os.Getenv("FI_TCP_IFACE") == "", base == "net" && os.Getenv("FI_NET_IFACE") == "":
		return o.Met
	}
	return ""
}

func measureOnce(ctx context.Context, library *libfabric.Library, c libfabric.Config) error {
	measured.Lock()
	defer measured.Unlock()
	err, known := measured.results[c]
	if known {
		return err
	}
	err = measure(ctx, func() (provider.Endpoint, error) { return library.OpenEndpoint(c) })
	if ctx.Err() == nil {
		if measured.results == nil {
			measured.results = map[libfabric.Config]error{}
		}
		measured.results[c] = err
	}
	return err
}

// measureFor bounds each step of a measurement. On a machine with more threads than processors a step may take seconds.
const measureFor = 20 * time.Second

// measure opens two endpoints and writes from one to the other: bytes must arrive with their data, and
// a wrong key must be refused, for that is what keeps late writes out of memory that is used anew.
func measure(ctx context.Context, opened func() (provider.Endpoint, error)) (err error) {
	pinner := new(runtime.Pinner)
	defer pinner.Unpin() // when the endpoints are closed
	var ends [2]provider.Endpoint
	for i := range ends {
		if ends[i], err = opened(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ends[i].Close()) }()
	}
	const n, at = 3000, 72
	var memories [2]provider.Memory
	var bytes [2][]byte
	keys := newKeys(ends[0].Attributes().KeyBytes)
	for i, e := range ends {
		bytes[i] = make([]byte, 4096)
		pinner.Pin(unsafe.SliceData(bytes[i]))
		if memories[i], err = e.Register(bytes[i], keys.next(0)); err != nil {
			return err
		}
	}
	for i := range n {
		bytes[0][i] = byte(i*7 + 1)
	}
	wanted := uint64(0x5aa5c33c) // shorter data would cut it
	if ends[0].Attributes().DataBytes >= 8 {
		wanted |= 0x0ff06996 << 32
	}
	name, err := ends[1].Name()
	if err != nil {
		return err
	}
	to, err := ends[0].Insert(name)
	if err != nil {
		return err
	}
	post := &provider.Post{
		From: unsafe.Pointer(unsafe.SliceData(bytes[0])), Local: memories[0], Bytes: n, To: to,
		Remote: memories[1].Base() + at, Key: memories[1].Key(), Data: wanted, HasData: true,
	}
	what := ends[0].Attributes().Provider
	m := measurement{ctx: ctx, ends: ends, expect: 1}
	if err := m.write(post); err != nil {
		return unsupported("provider %s: a write of %d bytes: %w", what, n, err)
	}
	if !slices.Equal(bytes[1][at:at+n], bytes[0][:n]) || m.data != wanted {
		return unsupported("provider %s: a write of %d bytes brought other bytes, or data %#x for %#x", what, n,
			m.data, wanted)
	}
	m = measurement{ctx: ctx, ends: ends}
	post.Key, post.HasData, post.Bytes, post.Remote = post.Key^0x5a, false, 8, memories[1].Base()
	if err := m.write(post); err == nil {
		return unsupported("provider %s lets writes with a wrong key land", what)
	} else if _, ok := errors.AsType[*ProviderError](err); !ok {
		return unsupported("provider %s: a write with a wrong key: %w", what, err)
	}
	return nil
}

// measurement is one write from the first endpoint to the second.
type measurement struct {
	ctx    context.Context
	ends   [2]provider.Endpoint
	expect int // completions at the second

	arrived int
	data    uint64
}

// write posts and waits for the completions.
func (m *measurement) write(post *provider.Post) error {
	posted, done := false, false
	into := make([]provider.Completion, 8)
	for begun := time.Now(); !done || m.arrived < m.expect; {
		if err := context.Cause(m.ctx); err != nil {
			return fmt.Errorf("provider not measured: %w", err)
		}
		if time.Since(begun) > measureFor {
			return fmt.Errorf("did not complete in %v", measureFor)
		}
		if !posted {
			err := m.ends[0].Write(post)
			if err != nil && !errors.Is(err, provider.ErrAgain) {
				return err
			}
			posted = err == nil
		}
		for _, e := range m.ends {
			n, err := e.Poll(into)
			if err != nil {
				return err
			}
			for _, c := range into[:n] {
				switch {
				case c.Arrived:
					m.arrived++
					m.data = c.Data
				case c.Err != nil:
					return c.Err
				default:
					done = true
				}
			}
		}
		runtime.Gosched()
	}
	return nil
}
