package doctor

import (
	"errors"
	"fmt"

	"github.com/weftgo/weft/cuda"
)

// CUDA holds the CUDA driver's answers. It is asked without a context on any device.
type CUDA struct {
	Version string   `json:"version"` // of CUDA, up to which the driver goes; empty is no driver
	Err     string   `json:"error,omitempty"`
	Missing bool     `json:"missing"` // there is no driver, which is not a fault of it
	Devices []Device `json:"devices"`
	Peers   [][]bool `json:"peers"` // [i][k]: device i reaches the memory of device k
}

// Device is a GPU as the driver sees it.
type Device struct {
	Name   string `json:"name"`
	Arch   string `json:"arch"` // the architecture for which kernels are compiled
	SMs    int    `json:"sms"`
	Memory uint64 `json:"memory_bytes"`
	VMM    bool   `json:"vmm"`    // virtual memory management, which windows need
	FD     bool   `json:"fd"`     // windows can be shared with other processes of the host
	Fabric bool   `json:"fabric"` // and with other hosts of an NVLink domain
}

// describe asks the driver about all devices.
func describe(driver *cuda.Driver, err error) CUDA {
	c := CUDA{Devices: []Device{}, Peers: [][]bool{}}
	if err != nil {
		c.Err, c.Missing = err.Error(), errors.Is(err, cuda.ErrUnsupported)
		return c
	}
	c.Version = driver.Version().String()
	devices := driver.Devices()
	for i, d := range devices {
		device := Device{VMM: d.Has(cuda.VirtualMemory), FD: d.Has(cuda.HandleTypeFD), Fabric: d.Has(cuda.HandleTypeFabric)}
		var errs [4]error
		device.Name, errs[0] = d.Name()
		device.Arch, errs[1] = d.Architecture()
		device.SMs, errs[2] = d.Multiprocessors()
		device.Memory, errs[3] = d.TotalMemory()
		if err := errors.Join(errs[:]...); err != nil && c.Err == "" {
			c.Err = fmt.Sprintf("GPU %d: %v", i, err)
		}
		reach := make([]bool, len(devices))
		for k, peer := range devices {
			reach[k] = k == i
			if k != i {
				reach[k], _ = d.CanAccessPeer(peer) // a device that cannot be queried counts as unreachable
			}
		}
		c.Devices, c.Peers = append(c.Devices, device), append(c.Peers, reach)
	}
	return c
}
