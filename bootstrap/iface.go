package bootstrap

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// InterfaceAddr is the address that ranks use of an interface, given by its name or by one of its addresses, as in
// [Environment].Interface.
func InterfaceAddr(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if !isLocal(a) {
			return netip.Addr{}, fmt.Errorf("no interface of this host has the address %s", s)
		}
		return a.Unmap(), nil
	}
	ifc, err := net.InterfaceByName(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no interface %q here; there are %s", s, strings.Join(interfaceNames(), ", "))
	}
	addrs := usable(ifc.Addrs)
	if len(addrs) == 0 {
		return netip.Addr{}, fmt.Errorf("interface %q has no address", s)
	}
	return addrs[0], nil
}

// cutInterface takes an address with an interface before it apart: "eth0:10.0.0.1:29500".
func cutInterface(text string) (name, address string, ok bool) {
	if _, _, err := net.SplitHostPort(text); err == nil {
		return "", "", false
	}
	name, address, ok = strings.Cut(text, ":")
	if !ok || name == "" || strings.ContainsAny(name, "[]") {
		return "", "", false
	}
	host, _, err := net.SplitHostPort(address)
	return name, address, err == nil && host != ""
}

// checkInterface refuses an interface on which no rank would find rank 0: rank 0 listens there
// only, and the others dial Address. All ranks of the host refuse alike. A name may stand for other
// addresses on other hosts, so it passes, unless it is that of every host for itself.
func checkInterface(ctx context.Context, cfg TCPConfig) error {
	if cfg.Interface == "" || !cfg.ID.IsZero() || !literal(cfg.Address) && !namesLoopback(cfg.Address) {
		return nil
	}
	own, err := InterfaceAddr(cfg.Interface)
	if err != nil {
		return err
	}
	addrs, _, err := resolve(ctx, cfg.Address)
	if err != nil {
		return err
	}
	if slices.Contains(addrs, own) || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !isLocal(a) }) {
		return nil
	}
	return fmt.Errorf("interface %s has the address %v, so no rank finds rank 0 at %s: "+
		"leave the interface out (WEFT_INTERFACE), or give an address of it (WEFT_ADDRESS)", cfg.Interface, own, cfg.Address)
}

func interfaceNames() []string {
	ifcs, _ := net.Interfaces()
	names := make([]string, len(ifcs))
	for i, ifc := range ifcs {
		names[i] = ifc.Name
	}
	return names
}

// usable lists addresses, IPv4 before IPv6, leaving out those that mean nothing on another host.
func usable(list func() ([]net.Addr, error)) []netip.Addr {
	raw, _ := list()
	var addrs []netip.Addr
	for _, a := range raw {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	v4First(addrs)
	return addrs
}

func v4First(addrs []netip.Addr) {
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
}

func isLocal(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(usable(net.InterfaceAddrs), a.Unmap())
}

// maxAddresses bounds the addresses that a rank publishes.
const maxAddresses = 4

// reachable lists the addresses at which others may find a port of this rank: the bound one if one
// is bound; else the one that has proved itself by reaching the meeting point. If that is loopback,
// which says nothing about other hosts, all others follow.
func reachable(bound, used netip.Addr, port uint16) []string {
	addrs := []netip.Addr{used}
	switch {
	case bound.IsValid():
		addrs[0] = bound
	case used.IsLoopback():
		for _, a := range usable(net.InterfaceAddrs) {
			if !a.IsLoopback() && len(addrs) < maxAddresses {
				addrs = append(addrs, a)
			}
		}
	}
	list := make([]string, len(addrs))
	for i, a := range addrs {
		list[i] = netip.AddrPortFrom(a, port).String()
	}
	return list
}

func addrOf(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// resolve looks a host:port up. IPv4 addresses come first.
func resolve(ctx context.Context, address string) ([]netip.Addr, uint16, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, 0, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("address %q: port is not a number up to 65535", address)
	}
	if host == "" {
		return nil, 0, fmt.Errorf("address %q has no host", address)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, uint16(port), fmt.Errorf("rank 0 at %s: %w", address, err)
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	v4First(addrs)
	return addrs, uint16(port), nil
}

// literal reports whether the host of address is written as a number.
func literal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = netip.ParseAddr(host)
	return err == nil
}
