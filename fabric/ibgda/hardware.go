package ibgda

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/fabric/internal/verbs"
	"github.com/weftgo/weft/fabric/mlx5"
)

// ErrUnavailable: kernels can drive no card here.
var ErrUnavailable = errors.New("no card that kernels can drive")

func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

// Found is a card of this machine.
type Found struct {
	Name    string
	Network string // "InfiniBand", "RoCE over IPv4"
	Address string // of its port: a LID or a GID
	Err     error  // why kernels cannot drive it
	path    string
}

// List lists this machine's cards, which it opens for a moment. It asks no GPU.
func List() ([]Found, error) {
	l, err := verbs.Open()
	if err != nil {
		return nil, unavailable(err)
	}
	listed, err := l.Cards()
	if err != nil {
		return nil, unavailable(err)
	}
	all := make([]Found, len(listed))
	for i, c := range listed {
		f := Found{Name: c.Name, path: c.Path}
		if h, err := open(l, c); err != nil {
			f.Err = err
		} else {
			f.Network, f.Address = h.address.network.String(), h.gid.String()
			if h.address.network == infiniBand {
				f.Address = fmt.Sprintf("LID %d", h.address.lid)
			}
			f.Err = h.card.Close()
		}
		all[i] = f
	}
	return all, nil
}

// Open opens a card for kernels of a GPU, by its name; with "" the nearest one that has a link. It makes a queue pair,
// and gives it back, so that what this machine refuses is known at once.
func Open(c *cuda.Context, name string) (Card, error) {
	l, err := verbs.Open()
	if err != nil {
		return nil, unavailable(err)
	}
	listed, err := l.Cards()
	if err != nil {
		return nil, unavailable(err)
	}
	order(listed, c)
	if name != "" {
		i := slices.IndexFunc(listed, func(c verbs.Listed) bool { return c.Name == name })
		if i < 0 {
			return nil, unavailable(fmt.Errorf("there is no such card: this machine has %s", names(listed)))
		}
		listed = listed[i : i+1]
	}
	if len(listed) == 0 {
		return nil, unavailable(errors.New("this machine has no RDMA card"))
	}
	var reasons []string
	for _, one := range listed {
		h, err := open(l, one)
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		h.pages = pages{context: c, held: map[uintptr]*held{}}
		if err := h.try(); err != nil {
			return nil, unavailable(errors.Join(err, h.Close()))
		}
		return h, nil
	}
	return nil, unavailable(errors.New(strings.Join(reasons, "; ")))
}

func names(listed []verbs.Listed) string {
	all := make([]string, len(listed))
	for i, c := range listed {
		all[i] = c.Name
	}
	slices.Sort(all)
	return cmp.Or(strings.Join(all, ", "), "none")
}

// order puts those first that are near the GPU.
func order(listed []verbs.Listed, c *cuda.Context) {
	gpu := ""
	if bus, err := c.Device().PCIBusID(); err == nil {
		gpu = place("/sys/bus/pci/devices/" + strings.ToLower(bus))
	}
	slices.SortStableFunc(listed, func(a, b verbs.Listed) int {
		return cmp.Compare(apart(gpu, place(a.Path+"/device")), apart(gpu, place(b.Path+"/device")))
	})
}

// hardware is a card of this machine.
type hardware struct {
	card    *verbs.Card
	port    int
	gid     verbs.GID
	address Address
	pages   pages
}

// port1 is the port that is used: mlx5 cards have one each.
const port1 = 1

// open opens a card whose port has a link and an address.
func open(l *verbs.Library, c verbs.Listed) (h *hardware, err error) {
	if !c.MLX5 {
		return nil, fmt.Errorf("%s is no mlx5", c.Name)
	}
	card, err := l.Open(c.Name)
	if err != nil {
		return nil, err
	}
	h = &hardware{card: card, port: port1}
	if err := h.find(); err != nil {
		return nil, errors.Join(err, card.Close())
	}
	return h, nil
}

// find finds the address of the port.
func (h *hardware) find() error {
	p, err := h.card.Port(h.port)
	if err != nil {
		return err
	}
	if !p.Active {
		return fmt.Errorf("%s: port %d has no link", h.card.Name, h.port)
	}
	gids, err := h.card.GIDs(h.port, p.GIDs)
	if err != nil {
		return err
	}
	h.address = Address{mtu: p.MTU, lid: p.LID}
	best := 0
	for _, g := range gids {
		if n := merit(p.Link, g); n > best {
			best, h.gid = n, g
		}
	}
	switch {
	case best == 0 && p.Link == verbs.Ethernet:
		return fmt.Errorf("%s: port %d has no address of RoCE v2: give its network interface an IP address", h.card.Name,
			h.port)
	case best == 0 || p.Link != verbs.Ethernet && p.Link != verbs.InfiniBand:
		return fmt.Errorf("%s: port %d, on %s, has no address", h.card.Name, h.port, p.Link)
	case p.Link == verbs.InfiniBand:
		h.address.network = infiniBand
	case netip.AddrFrom16(h.gid.Bytes).Is4In6():
		h.address.network = roce4
	default:
		h.address.network = roce6
	}
	h.address.gid = h.gid.Bytes
	return nil
}

// merit ranks addresses of a port: on Ethernet RoCE v2 by IPv4, by a routed IPv6 address, by one of the link alone.
// 0 is none that is used.
func merit(on verbs.Link, g verbs.GID) int {
	a := netip.AddrFrom16(g.Bytes)
	switch {
	case on != verbs.Ethernet && g.Kind == verbs.OfInfiniBand:
		return 1
	case on != verbs.Ethernet || g.Kind != verbs.OfRoCE2:
		return 0
	case a.Is4In6():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}

// try makes a queue pair.
func (h *hardware) try() error {
	q, err := h.NewQueue(1)
	if err != nil {
		return err
	}
	return q.Close()
}

func (h *hardware) Name() string { return h.card.Name }

func (h *hardware) Address() Address { return h.address }

func (h *hardware) RegisterHost(m *cuda.HostMemory) (*Region, error) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes())))
	r, err := h.card.Register(at, m.Size())
	return region(r, at, m.Size(), err)
}

// RegisterGPU implements Card, by a dma-buf where the GPU gives one.
func (h *hardware) RegisterGPU(p cuda.Pointer, size int) (*Region, error) {
	c := h.pages.context
	if !c.Device().Has(cuda.DMABuf) {
		r, err := h.card.Register(uintptr(p), size)
		return region(r, uintptr(p), size, err)
	}
	file, offset, err := c.ExportDMABuf(p, size)
	if err != nil {
		return nil, err
	}
	r, err := h.registerFile(file, offset, p, size)
	return region(r, uintptr(p), size, errors.Join(err, file.Close()))
}

func (h *hardware) registerFile(file *os.File, offset int, p cuda.Pointer, size int) (r *verbs.Memory, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { // unlike Fd it leaves the file as it is
		r, failed = h.card.RegisterDMABuf(int(fd), offset, uintptr(p), size)
	})
	return r, errors.Join(err, failed)
}

func region(m *verbs.Memory, at uintptr, size int, err error) (*Region, error) {
	if err != nil {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
		return nil, err
	}
	return &Region{
		Address: uint64(at), Bytes: uint64(size), LocalKey: m.LocalKey, PeersKey: m.RemoteKey, release: m.Close,
	}, nil
}

// Close implements Card. It may be called again.
func (h *hardware) Close() error { return h.card.Close() }

// hardQueue is a queue pair of a card of this machine, whose pages the GPU has been given.
type hardQueue struct {
	card   *hardware
	queue  *verbs.Queue
	kernel device.NicQueue
	pages  []uintptr
}

// NewQueue implements Card.
func (h *hardware) NewQueue(entries int) (Queue, error) {
	v, err := h.card.NewQueue(entries)
	if err != nil {
		return nil, err
	}
	q := &hardQueue{card: h, queue: v}
	k := &q.kernel
	k.Mask, k.Log, k.Number = uint32(v.Entries-1), uint32(bits.TrailingZeros(uint(v.Completes))), v.Number
	for _, part := range []struct {
		at   uintptr
		size int
		io   bool
		to   *uint64
	}{
		{v.Send, v.Entries * mlx5.EntryBytes, false, &k.Entries},
		{v.Completions, v.Completes * mlx5.CompletionBytes, false, &k.Completions},
		{v.Record + 4*mlx5.SendRecordAt, 4, false, &k.Record},
		{v.Consumer, 4, false, &k.Consumer},
		{v.Register, 8, true, &k.Doorbell},
	} {
		first, p, err := h.pages.hold(part.at, part.size, part.io)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", h.card.Name, err), q.Close())
		}
		q.pages, *part.to = append(q.pages, first), uint64(p)
	}
	return q, nil
}

func (q *hardQueue) Number() uint32 { return q.queue.Number }

func (q *hardQueue) Kernel() device.NicQueue { return q.kernel }

func (q *hardQueue) Connect(peer Address, number uint32) error {
	own := q.card.address
	if err := own.reach(peer); err != nil {
		return err
	}
	return q.queue.Connect(verbs.Path{
		Port: q.card.port, MTU: min(own.mtu, peer.mtu), Peer: number, LID: peer.lid, GID: peer.gid, Index: q.card.gid.Index,
		// A subnet of InfiniBand is the first half of its GIDs.
		Global: own.network != infiniBand || [8]byte(own.gid[:8]) != [8]byte(peer.gid[:8]),
	})
}

// Close takes the pages from the GPU, before the library frees them.
func (q *hardQueue) Close() error {
	var errs []error
	for _, first := range q.pages {
		errs = append(errs, q.card.pages.release(first))
	}
	q.pages = nil
	return errors.Join(append(errs, q.queue.Close())...)
}
