package cuda

import (
	"fmt"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// Device is a GPU. Asking it needs no context. Devices are made by [Driver] and compare equal if
// they are the same.
type Device struct {
	driver  *Driver
	ordinal int
	handle  sys.Device
	spares  spares
}

// UUID identifies a GPU, or a part of one.
type UUID [16]byte

func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Ordinal is the device's place in [Driver.Devices].
func (d *Device) Ordinal() int { return d.ordinal }

// Driver is the driver that the device belongs to.
func (d *Device) Driver() *Driver { return d.driver }

// Name is the product's name.
func (d *Device) Name() (string, error) {
	name := make([]byte, 256)
	err := d.driver.check("cuDeviceGetName", d.driver.table.DeviceGetName(&name[0], int32(len(name)-1), d.handle))
	return dl.GoString(&name[0]), err
}

// UUID is the identifier by which tools and other processes know the device.
func (d *Device) UUID() (UUID, error) {
	u := new(sys.UUID)
	err := d.driver.check("cuDeviceGetUuid", d.driver.table.DeviceGetUUID(u, d.handle))
	return UUID(*u), err
}

// PCIBusID is the device's place on the bus, as in 0000:1b:00.0.
func (d *Device) PCIBusID() (string, error) {
	id := make([]byte, 32)
	err := d.driver.check("cuDeviceGetPCIBusId", d.driver.table.DeviceGetPCIBusID(&id[0], int32(len(id)-1), d.handle))
	return dl.GoString(&id[0]), err
}

// Attribute is an integer property of the device.
func (d *Device) Attribute(a Attribute) (int, error) {
	value := new(int32)
	err := d.driver.check("cuDeviceGetAttribute", d.driver.table.DeviceGetAttribute(value, int32(a), d.handle))
	return int(*value), err
}

// Has reports whether the device has a capability. A driver that does not know the attribute does
// not have the capability.
func (d *Device) Has(a Attribute) bool {
	value, err := d.Attribute(a)
	return err == nil && value != 0
}

// Multiprocessors is how many SMs the device has.
func (d *Device) Multiprocessors() (int, error) { return d.Attribute(MultiprocessorCount) }

// ComputeCapability is 9, 0 for sm_90.
func (d *Device) ComputeCapability() (major, minor int, err error) {
	if major, err = d.Attribute(ComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = d.Attribute(ComputeCapabilityMinor)
	return major, minor, err
}

// Architecture is the compile target that uses all features of the device: sm_80, sm_90a. From 9.0
// on that is the architecture-specific target.
func (d *Device) Architecture() (string, error) {
	major, minor, err := d.ComputeCapability()
	if err != nil {
		return "", err
	}
	suffix := ""
	if major >= 9 {
		suffix = "a"
	}
	return fmt.Sprintf("sm_%d%d%s", major, minor, suffix), nil
}

// TotalMemory is the size of the device's memory in bytes.
func (d *Device) TotalMemory() (uint64, error) {
	size := new(uint64)
	err := d.driver.check("cuDeviceTotalMem", d.driver.table.DeviceTotalMem(size, d.handle))
	return *size, err
}
