package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Memory is registered memory.
type Memory struct {
	LocalKey, RemoteKey uint32

	card   *Card
	region uintptr
}

// access is what peers may do, and the card itself. Nothing relaxes the order of writes: flags follow data.
const access = accessLocalWrite | accessRemoteWrite | accessRemoteAtomic

// Register lets the card read and write memory, and peers by its remote key. The memory stays as it is until Close.
// Memory of a GPU takes a module of the kernel, nvidia_peermem.
func (c *Card) Register(address uintptr, bytes int) (*Memory, error) {
	region, err := c.library.pointer("ibv_reg_mr", c.library.register, c.domain, address, uintptr(bytes), access)
	return c.registered(region, bytes, err)
}

// RegisterDMABuf is Register of memory that a dma-buf has from an offset on, and that entries name by an address. The
// descriptor is free again afterwards.
func (c *Card) RegisterDMABuf(fd, offset int, address uintptr, bytes int) (*Memory, error) {
	region, err := c.library.pointer("ibv_reg_dmabuf_mr", c.library.registerDMABuf, c.domain, uintptr(offset),
		uintptr(bytes), address, uintptr(fd), access)
	return c.registered(region, bytes, err)
}

func (c *Card) registered(region uintptr, bytes int, err error) (*Memory, error) {
	if err == nil {
		m := at[memoryRegion](region)
		return &Memory{LocalKey: m.localKey, RemoteKey: m.remoteKey, card: c, region: region}, nil
	}
	return nil, fmt.Errorf("%s: register %d bytes: %w%s", c.Name, bytes, err, wayOut(err))
}

// wayOut is what there is to do where memory was refused, behind a colon, or nothing.
func wayOut(err error) string {
	switch {
	case errors.Is(err, syscall.ENOMEM):
		return ": raise the limit of locked memory (ulimit -l)"
	case errors.Is(err, syscall.EFAULT):
		return ": memory of a GPU takes a dma-buf or the module nvidia_peermem"
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT):
		return ": dma-bufs take Linux 5.12 and NVIDIA's open kernel modules"
	}
	return ""
}

// Close takes the keys back.
func (m *Memory) Close() error {
	if m.region == 0 {
		return nil
	}
	region := m.region
	m.region = 0
	return m.card.library.status("ibv_dereg_mr", m.card.library.deregister, region)
}
