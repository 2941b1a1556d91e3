package weft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
)

// gpuInfo is the part of a peerInfo that describes the rank's GPU.
type gpuInfo struct {
	uuid    cuda.UUID
	sms     int
	blocks  int // of an SM, at most
	virtual bool
	fd      bool   // virtual memory can be shared by descriptors
	bus     string // its address on the bus
	arch    string

	multicast multicastWish
}

// multicastWish is whether a rank wants multicast addresses, and whether its GPU could have them. Unless the rank
// wants them its GPU is not asked.
type multicastWish uint8

const (
	multicastUnasked multicastWish = iota
	multicastMissing
	multicastWanted
)

func gpuInfoOf(d *cuda.Device) (p gpuInfo, err error) {
	if p.uuid, err = d.UUID(); err != nil {
		return p, err
	}
	if p.bus, err = d.PCIBusID(); err != nil {
		return p, err
	}
	if p.arch, err = d.Architecture(); err != nil {
		return p, err
	}
	if p.sms, err = d.Multiprocessors(); err != nil {
		return p, err
	}
	if p.blocks, err = d.Attribute(cuda.BlocksPerMultiprocessor); err != nil {
		return p, err
	}
	p.virtual, p.fd = d.Has(cuda.VirtualMemory), d.Has(cuda.HandleTypeFD)
	asked, err := multicastAsked()
	if asked {
		p.multicast = multicastMissing
		if d.Has(cuda.Multicast) {
			p.multicast = multicastWanted
		}
	}
	return p, err
}

const (
	maxBus     = 32
	hasVirtual = 1
	hasFD      = 2
	// A multicastWish takes the two bits above.
	multicastShift = 2
)

// encode encodes the information. Peers need neither the architecture nor the blocks of an SM.
func (p gpuInfo) encode() string {
	b := append([]byte(nil), p.uuid[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.sms))
	var flags byte
	if p.virtual {
		flags |= hasVirtual
	}
	if p.fd {
		flags |= hasFD
	}
	flags |= byte(p.multicast) << multicastShift
	return string(append(append(b, flags), p.bus...))
}

func parseGPUInfo(b []byte) (p gpuInfo, err error) {
	const fixed = 16 + 4 + 1
	if len(b) < fixed || len(b) > fixed+maxBus {
		return p, fmt.Errorf("%w: %d bytes about its GPU", ErrMismatch, len(b))
	}
	sms, flags := binary.LittleEndian.Uint32(b[16:]), b[20]
	wish := multicastWish(flags >> multicastShift)
	if wish > multicastWanted {
		return p, fmt.Errorf("%w: flags %#x of its GPU", ErrMismatch, flags)
	}
	if sms == 0 || sms > 1<<16 {
		return p, fmt.Errorf("%w: a GPU of %d multiprocessors", ErrMismatch, sms)
	}
	p = gpuInfo{
		sms: int(sms), virtual: flags&hasVirtual != 0, fd: flags&hasFD != 0, bus: string(b[fixed:]), multicast: wish,
	}
	copy(p.uuid[:], b)
	return p, nil
}

// checkPeers takes the GPUs of all ranks from their peerInfos. It refuses, on every rank alike, a
// communicator in which only some ranks are on GPUs, or in which a rank could not open its GPU. d is
// nil on the host; alone says that all ranks of this host are in this process, and own is the error of opening this
// rank's GPU.
func (d *Device) checkPeers(peers []peerInfo, alone bool, hosts []int, own error) error {
	if own != nil {
		return own
	}
	notes := make([][]byte, len(peers))
	var onGPU, onHost []int
	for r, c := range peers {
		switch {
		case len(c.device) == 0:
			onHost = append(onHost, r)
		case c.device[0] == '!':
			notes[r] = c.device
		default:
			onGPU = append(onGPU, r)
		}
	}
	if err := agreed("join", notes); err != nil {
		return err
	}
	if len(onGPU) > 0 && len(onHost) > 0 {
		return Unsupportedf("join: ranks %v are on GPUs and ranks %v on the host; bind all of them to GPUs, "+
			"or none", onGPU, onHost)
	}
	if d == nil {
		return nil
	}
	if len(peers) > device.MaxRanks {
		return Unsupportedf("join: %d ranks on GPUs; a communicator on GPUs has at most %d: split the job into groups",
			len(peers), device.MaxRanks)
	}
	d.sms, d.virtual = d.info.sms, true
	fd := true
	for r, c := range peers {
		p, err := parseGPUInfo(messageText(c.device))
		if err != nil {
			return &PeerError{Rank: r, Op: "join", Err: err}
		}
		d.sms, d.virtual, fd = min(d.sms, p.sms), d.virtual && p.virtual, fd && p.fd
		d.peers = append(d.peers, p)
		d.devices = append(d.devices, d.find(p.uuid))
	}
	if !alone {
		d.virtual, d.share = d.virtual && fd, cuda.ShareFD
	}
	if err := d.agreeMulticast(); err != nil || !d.multicast {
		return err
	}
	if far := slices.Index(hosts, 1); far >= 0 {
		return Unsupportedf("join: ranks 0 and %d are on different hosts, and %s is for ranks of one; join without it", far,
			multicastVariable)
	}
	d.share = cuda.ShareFD // groups that pass as descriptors bind no other memory
	return nil
}

// find returns the GPU in this process's driver, or nil if the process does not see it.
func (d *Device) find(u cuda.UUID) *cuda.Device {
	all := d.context.Device().Driver().Devices()
	i := slices.IndexFunc(all, func(o *cuda.Device) bool {
		got, err := o.UUID()
		return err == nil && got == u
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// checkAccess refuses a peer whose memory this rank's GPU cannot reach. For a GPU that this process
// does not see, only mapping its memory shows that.
func (d *Device) checkAccess(rank int, hosts []int) error {
	for r, other := range d.devices {
		if other == nil || other == d.context.Device() || hosts[r] != hosts[rank] {
			continue
		}
		can, err := d.context.Device().CanAccessPeer(other)
		if err != nil {
			return deviceError("join", err)
		}
		if !can {
			return Unsupportedf("join: rank %d's GPU %s cannot reach the memory of rank %d's GPU %s; choose "+
				"GPUs that NVLink or PCIe peer access connects "+
				"(nvidia-smi topo -p2p r shows them), or join on the host", rank, d.info.bus, r, d.peers[r].bus)
		}
	}
	return nil
}

// message is the device part of a rank's peerInfo.
func (d *Device) message(unbound error) []byte {
	switch {
	case unbound != nil:
		return messageOf("", unbound)
	case d == nil:
		return nil
	}
	return messageOf(d.info.encode(), nil)
}
