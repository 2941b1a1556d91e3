package cuda

import (
	"fmt"
	"sync"

	"github.com/weftgo/weft/cuda/internal/sys"
	"github.com/weftgo/weft/internal/dl"
)

// Driver is the CUDA driver of this process. It is safe for concurrent use and is never closed.
type Driver struct {
	table   *sys.Table
	version Version
	devices []*Device
}

// Version is a version of CUDA as the driver writes it: 13010 for 13.1.
type Version int

// Major is the number before the point.
func (v Version) Major() int { return int(v) / 1000 }

// Minor is the number after the point.
func (v Version) Minor() int { return int(v) % 1000 / 10 }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }

// candidates are where drivers are found: by the loader, under WSL, in Kubernetes' device plugins,
// on NixOS.
var candidates = []string{
	"libcuda.so.1",
	"libcuda.so",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
}

var machine = sync.OnceValues(func() (*Driver, error) { return load(candidates) })

// Open loads the machine's driver and initialises it, once in a process; every call gives the same
// answer. The first takes up to seconds on a machine with many GPUs. Without a driver the error
// wraps [ErrUnsupported]; with a driver but no device it wraps [ErrNoDevice].
func Open() (*Driver, error) { return machine() }

func load(names []string) (*Driver, error) {
	library, err := dl.Open(names...)
	if err != nil {
		return nil, fmt.Errorf("%w: no CUDA driver: %w; install NVIDIA's driver, or give the container access to it",
			ErrUnsupported, err)
	}
	return New(sys.Load(library))
}

// New initialises a driver behind a table of its entry points. It is how
// [github.com/weftgo/weft/cuda/cudatest] makes one that needs no GPU.
func New(table *sys.Table) (*Driver, error) {
	table.Complete()
	d := &Driver{table: table}
	version, count := new(int32), new(int32)
	if err := d.check("cuDriverGetVersion", table.DriverGetVersion(version)); err != nil {
		return nil, err
	}
	d.version = Version(*version)
	if err := d.check("cuInit", table.Init(0)); err != nil {
		return nil, err
	}
	if err := d.check("cuDeviceGetCount", table.DeviceGetCount(count)); err != nil {
		return nil, err
	}
	for ordinal := range *count {
		handle := new(sys.Device)
		if err := d.check("cuDeviceGet", table.DeviceGet(handle, ordinal)); err != nil {
			return nil, err
		}
		d.devices = append(d.devices, &Device{driver: d, ordinal: int(ordinal), handle: *handle})
	}
	return d, nil
}

// Version is the newest version of CUDA that the driver supports.
func (d *Driver) Version() Version { return d.version }

// Devices are the GPUs that the process may use, by ordinal.
func (d *Driver) Devices() []*Device { return append([]*Device(nil), d.devices...) }

// Device is the GPU with that ordinal. The error wraps [ErrInvalidDevice] if there is none.
func (d *Driver) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || ordinal >= len(d.devices) {
		return nil, &Error{
			Call: "cuDeviceGet", Code: ErrInvalidDevice,
			Text: fmt.Sprintf("device %d of %d", ordinal, len(d.devices)),
		}
	}
	return d.devices[ordinal], nil
}
