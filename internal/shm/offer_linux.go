package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// offer is what a peer gave for an exchange and nobody has taken yet.
type offer struct {
	kind frameKind // kindRegion, kindDescriptor or kindMemory; 0 for nothing
	regionOffer
	fd     int     // of another process's region or descriptor, or a duplicate of one of this process's
	region *Region // of this process, with a reference for whoever takes it
	memory []byte
	err    error // why there is nothing to take
}

// offerOf reads an offer out of a packet, whose descriptor it takes.
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

// drop gives up what the offer holds.
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

// takeRegion maps what was offered.
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
