package cuda

import (
	"cmp"

	"github.com/weftgo/weft/cuda/internal/sys"
)

// PeerLink is the connection from one device to another.
type PeerLink struct {
	Access  bool // the first can read and write the second's memory
	Atomics bool // with atomic operations as well
	Rank    int  // 0 is the fastest kind of link of the machine
}

// CanAccessPeer says whether kernels on d can reach memory of the peer.
func (d *Device) CanAccessPeer(peer *Device) (bool, error) {
	const call = "cuDeviceCanAccessPeer"
	if peer == nil {
		return false, missing(call, "peer")
	}
	can := new(int32)
	err := d.driver.check(call, d.driver.table.DeviceCanAccessPeer(can, d.handle, peer.handle))
	return *can != 0, err
}

// PeerLink describes the way from d to another device.
func (d *Device) PeerLink(peer *Device) (PeerLink, error) {
	const call = "cuDeviceGetP2PAttribute"
	var link PeerLink
	if peer == nil {
		return link, missing(call, "peer")
	}
	for _, ask := range []struct {
		attribute int32
		set       func(int32)
	}{
		{sys.P2PAccessSupported, func(v int32) { link.Access = v != 0 }},
		{sys.P2PNativeAtomicSupported, func(v int32) { link.Atomics = v != 0 }},
		{sys.P2PPerformanceRank, func(v int32) { link.Rank = int(v) }},
	} {
		value := new(int32)
		r := d.driver.table.DeviceGetP2PAttribute(value, ask.attribute, d.handle, peer.handle)
		if err := d.driver.check(call, r); err != nil {
			return PeerLink{}, err
		}
		ask.set(*value)
	}
	return link, nil
}

// EnablePeer lets this context reach all memory that was or will be allocated in the peer's, but
// virtual memory, which has its own list of devices. That it was enabled before, by this or another
// library, is no error.
func (c *Context) EnablePeer(peer *Context) error {
	const call = "cuCtxEnablePeerAccess"
	if err := cmp.Or(c.use(call), peer.use(call)); err != nil {
		return err
	}
	r := c.table.CtxEnablePeerAccess(c.handle, peer.handle, 0)
	if Code(r) == ErrPeerAlreadyEnabled {
		return nil
	}
	return c.check(call, r)
}

// DisablePeer takes the access away, from every library of the process.
func (c *Context) DisablePeer(peer *Context) error {
	const call = "cuCtxDisablePeerAccess"
	if err := cmp.Or(c.use(call), peer.use(call)); err != nil {
		return err
	}
	return c.check(call, c.table.CtxDisablePeerAccess(c.handle, peer.handle))
}
