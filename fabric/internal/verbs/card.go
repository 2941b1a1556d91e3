package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/weftgo/weft/internal/dl"
)

// Listed is a card that the libraries know.
type Listed struct {
	Name string
	Path string // of the kernel's folder of it: /sys/class/infiniband/NAME
	MLX5 bool   // its queues have the formats of package mlx5
}

// Cards lists the cards. There may be none.
func (l *Library) Cards() (cards []Listed, err error) {
	err = l.each(func(d *device) (bool, error) {
		cards = append(cards, Listed{
			Name: l.name(d), Path: dl.GoString(&d.path[0]), MLX5: byte(l.isSupported.Call(dl.Word(d))) != 0,
		})
		return true, nil
	})
	return cards, err
}

func (l *Library) name(d *device) string {
	return dl.GoString(at[byte](l.getDeviceName.Call(dl.Word(d))))
}

// each shows one card after the other, until it is told to stop.
func (l *Library) each(show func(*device) (more bool, err error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, err := l.pointer("ibv_get_device_list", l.getDeviceList, dl.Word(&l.count))
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.Errno(0)) {
		return nil // the kernel has no RDMA
	}
	if err != nil {
		return err
	}
	defer l.freeDeviceList.Call(list)
	for _, d := range unsafe.Slice(at[*device](list), l.count) {
		if more, err := show(d); !more || err != nil {
			return err
		}
	}
	return nil
}

// Card is an open card. Its methods are one goroutine's at a time.
type Card struct {
	Name string

	library *Library
	context uintptr
	domain  uintptr
	// What calls are given lies here, on the heap.
	port   portAttr
	gid    gidEntry
	init   queueInit
	attr   queueAttr
	object mlx5Object
	queue  mlx5Queue
	ring   mlx5Completions
}

// Open opens a card.
func (l *Library) Open(name string) (*Card, error) {
	c := &Card{Name: name, library: l}
	err := l.each(func(d *device) (bool, error) {
		if l.name(d) != name {
			return true, nil
		}
		var err error
		c.context, err = l.pointer("ibv_open_device", l.openDevice, dl.Word(d))
		if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
			err = fmt.Errorf("%w: give the process, or its container, access to /dev/infiniband", err)
		}
		return false, err
	})
	if err == nil && c.context == 0 {
		err = errors.New("there is no such card")
	}
	if err == nil {
		c.domain, err = l.pointer("ibv_alloc_pd", l.allocDomain, c.context)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", name, err), c.Close())
	}
	return c, nil
}

// Close closes the card, whose queues and memory are closed.
func (c *Card) Close() error {
	var errs []error
	if c.domain != 0 {
		errs = append(errs, c.library.status("ibv_dealloc_pd", c.library.deallocDomain, c.domain))
	}
	if c.context != 0 {
		errs = append(errs, c.library.status("ibv_close_device", c.library.closeDevice, c.context))
	}
	c.domain, c.context = 0, 0
	return errors.Join(errs...)
}

// Link is the kind of a port's network.
type Link uint8

// Links.
const (
	InfiniBand Link = linkInfiniBand
	Ethernet   Link = linkEthernet
)

func (l Link) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return fmt.Sprintf("link layer %d", uint8(l))
}

// Port is what a card says of a port.
type Port struct {
	Active bool
	Link   Link
	LID    uint16 // on InfiniBand
	MTU    uint8  // 1 to 5: 256 to 4096 bytes
	GIDs   int    // room for so many
}

// Port asks about a port, from 1.
func (c *Card) Port(n int) (Port, error) {
	c.port = portAttr{}
	if err := c.library.status("ibv_query_port", c.library.queryPort, c.context, uintptr(n),
		dl.Word(&c.port)); err != nil {
		return Port{}, fmt.Errorf("%s: port %d: %w", c.Name, n, err)
	}
	p := &c.port
	if p.activeMTU < mtu256 || p.activeMTU > mtu4096 {
		return Port{}, fmt.Errorf("%s: port %d has an MTU of code %d", c.Name, n, p.activeMTU)
	}
	return Port{
		Active: p.state == portActive, Link: Link(p.linkLayer), LID: p.lid, MTU: uint8(p.activeMTU), GIDs: int(p.gids),
	}, nil
}

// GID is an address of a port.
type GID struct {
	Index int
	Bytes [16]byte
	Kind  GIDKind
}

// GIDKind is which protocol goes by an address.
type GIDKind uint8

// Kinds of addresses.
const (
	OfInfiniBand GIDKind = gidInfiniBand
	OfRoCE1      GIDKind = gidRoCE1
	OfRoCE2      GIDKind = gidRoCE2
)

func (g GID) String() string { return netip.AddrFrom16(g.Bytes).Unmap().String() }

// GIDs lists the addresses of a port that are set.
func (c *Card) GIDs(port, room int) (all []GID, err error) {
	for i := range room {
		c.gid = gidEntry{}
		err := c.library.status("ibv_query_gid_ex", c.library.queryGID, c.context, uintptr(port), uintptr(i),
			dl.Word(&c.gid), 0, unsafe.Sizeof(c.gid))
		if errors.Is(err, syscall.ENODATA) {
			continue // empty
		}
		if err != nil {
			return nil, fmt.Errorf("%s: port %d: address %d: %w", c.Name, port, i, err)
		}
		if c.gid.gid != [16]byte{} {
			all = append(all, GID{Index: i, Bytes: c.gid.gid, Kind: GIDKind(c.gid.kind)})
		}
	}
	return all, nil
}
