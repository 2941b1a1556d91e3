package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Requests to the kernel's routing socket (rtnetlink(7)), in this thread's namespace.

var native = binary.NativeEndian

// message is a request's body: a fixed header, then attributes.
type message struct {
	kind  uint16
	flags uint16
	body  []byte
}

// link begins a message about an interface, which an index or a later name says.
func link(index int32, flags, change uint32) *message {
	m := &message{kind: unix.RTM_NEWLINK}
	m.body = interfaceHeader(index, flags, change)
	return m
}

func interfaceHeader(index int32, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], change)
	return b
}

// attribute appends one, padded.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = native.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

func (m *message) with(kind uint16, value []byte) *message {
	m.body = attribute(m.body, kind, value)
	return m
}

func text(s string) []byte { return append([]byte(s), 0) }

func number(n int) []byte { return native.AppendUint32(nil, uint32(n)) }

// newBridge is a request for a bridge that is up.
func newBridge(name string) *message {
	m := link(0, unix.IFF_UP, unix.IFF_UP).with(unix.IFLA_IFNAME, text(name)).
		with(unix.IFLA_LINKINFO, attribute(nil, unix.IFLA_INFO_KIND, []byte("bridge")))
	m.flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	return m
}

// newPair is a request for a pair of virtual Ethernet interfaces: one here, the other in a namespace.
func newPair(here, there string, namespace int) *message {
	const peerInfo = 1 // VETH_INFO_PEER
	other := attribute(interfaceHeader(0, 0, 0), unix.IFLA_IFNAME, text(there))
	other = attribute(other, unix.IFLA_NET_NS_FD, number(namespace))
	info := attribute(nil, unix.IFLA_INFO_KIND, []byte("veth"))
	info = attribute(info, unix.IFLA_INFO_DATA, attribute(nil, peerInfo, other))
	m := link(0, 0, 0).with(unix.IFLA_IFNAME, text(here)).with(unix.IFLA_LINKINFO, info)
	m.flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	return m
}

// up has an interface work.
func up(name string) error {
	return request(link(0, unix.IFF_UP, unix.IFF_UP).with(unix.IFLA_IFNAME, text(name)))
}

// attach makes an interface a port of a bridge, and up.
func attach(name, bridge string) error {
	b, err := net.InterfaceByName(bridge)
	if err != nil {
		return err
	}
	return request(link(0, unix.IFF_UP, unix.IFF_UP).with(unix.IFLA_IFNAME, text(name)).
		with(unix.IFLA_MASTER, number(b.Index)))
}

// address gives an interface an address in a network of 256, and has it work.
func address(name string, a netip.Addr) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	const prefix = 24
	m := &message{kind: unix.RTM_NEWADDR, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL}
	m.body = []byte{unix.AF_INET, prefix, 0, unix.RT_SCOPE_UNIVERSE}
	m.body = append(m.body, number(i.Index)...)
	if err := request(m.with(unix.IFA_LOCAL, a.AsSlice()).with(unix.IFA_ADDRESS, a.AsSlice())); err != nil {
		return err
	}
	return up(name)
}

// request sends a message and waits for the kernel's answer, which comes at once.
func request(m *message) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(fd)
	b := native.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(m.body)))
	b = native.AppendUint16(b, m.kind)
	b = native.AppendUint16(b, m.flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(append(b, make([]byte, 8)...), m.body...) // sequence and port: 0
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if n < unix.SizeofNlMsghdr+4 || native.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("netlink: an answer that is none")
	}
	if code := int32(native.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return fmt.Errorf("netlink: %w", syscall.Errno(-code))
	}
	return nil
}
