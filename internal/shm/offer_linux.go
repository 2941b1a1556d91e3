package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// offer is a peer's contribution to an exchange that was not taken yet.
type offer struct {
	kind frameKind // kindRegion, kindDescriptor or kindMemory; 0 for nothing
	regionOffer
	fd     int     // of another process's region or descriptor, or a duplicate of one of this process's
	region *Region // of this process, with a reference for the taker
	memory []byte
	err    error // why there is nothing to take
}

// offerOf decodes a packet into an offer, which owns the packet's descriptor.
func offerOf(p packet) (offer, error) {
	o := offer{kind: p.kind, fd: p.fd}
	if p.lost {
		o.err = ErrNoDescriptor
	}
	if p.kind == kindRegion {
		var err error
		if o.regionOffer, err = decodeRegionOffer(p.payload); err != nil {
			o.drop()
			return offer{}, err
		}
	}
	return o, nil
}

// drop frees the offer's content.
func (o offer) drop() {
	if o.kind != kindRegion && o.kind != kindDescriptor {
		return
	}
	switch {
	case o.region != nil:
		_ = o.region.Release()
	case o.fd >= 0:
		_ = unix.Close(o.fd)
	}
}

// takeRegion maps the offered region.
func (o offer) takeRegion() (*Region, error) {
	if o.region != nil {
		return o.region, nil
	}
	r, err := fromFD(o.fd, o.size, o.populate)
	if err != nil {
		return nil, err
	}
	if err := r.closeFD(); err != nil {
		return nil, fmt.Errorf("%w (and %v)", err, r.Release())
	}
	return r, nil
}
