//go:build linux

package cuda_test

import (
	"fmt"
	"log"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
)

// machine has a kernel that fills n words. On a machine with a GPU it would be cuda.Open.
func machine() (*cuda.Driver, error) {
	m := cudatest.New(cudatest.Config{})
	m.Kernel("fill", func(c *cudatest.Call, p cuda.Pointer, n, v int32) {
		for i := range cudatest.Slice[int32](c, p, int(n)) {
			cudatest.Slice[int32](c, p, int(n))[i] = v
		}
	})
	return m.Open()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	driver, err := machine()
	check(err)
	device, err := driver.Device(0)
	check(err)
	context, err := device.Primary()
	check(err)
	defer context.Close()
	stream, err := context.NewStream(cuda.StreamOptions{})
	check(err)
	defer stream.Close()
	data, err := context.Alloc(4 * 1000)
	check(err)
	defer data.Close()
	module, err := context.LoadModule([]byte("a cubin"))
	check(err)
	defer module.Close()
	fill, err := module.Function("fill")
	check(err)

	launch, err := fill.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 4}, Block: cuda.Dim{X: 256}},
		data.Pointer(), int32(1000), int32(0))
	check(err)
	value, err := cuda.Arg[int32](launch, 2)
	check(err)
	for *value = range int32(8) {
		check(launch.Start(stream))
	}
	check(stream.Synchronize())
	word := make([]byte, 4)
	check(context.Download(word, data.Pointer()))
	fmt.Println(word)
	// Output: [7 0 0 0]
}

func ExampleStream_Capture() {
	driver, err := machine()
	check(err)
	device, err := driver.Device(0)
	check(err)
	context, err := device.Primary()
	check(err)
	defer context.Close()
	stream, err := context.NewStream(cuda.StreamOptions{})
	check(err)
	defer stream.Close()
	data, err := context.Alloc(64)
	check(err)
	defer data.Close()

	graph, err := stream.Capture(func() error {
		if err := stream.Memset(data.Pointer(), 1, 32); err != nil {
			return err
		}
		return stream.Copy(data.Pointer().Add(32), data.Pointer(), 32)
	})
	check(err)
	defer graph.Close()
	exec, err := graph.Instantiate()
	check(err)
	defer exec.Close()
	for range 100 {
		check(exec.Launch(stream))
	}
	nodes, err := graph.Nodes()
	check(err)
	fmt.Println(nodes, "operations")
	// Output: 2 operations
}

// Memory that other processes map: the descriptor goes over a Unix socket.
func ExampleContext_AllocVirtual() {
	driver, err := machine()
	check(err)
	device, err := driver.Device(0)
	check(err)
	context, err := device.Primary()
	check(err)
	defer context.Close()

	window, err := context.AllocVirtual(3<<20, cuda.AllocationOptions{Share: cuda.ShareFD}, driver.Devices()...)
	check(err)
	defer window.Close()
	file, err := window.Allocations()[0].ExportFD()
	check(err)
	defer file.Close()

	// In the other process:
	allocation, err := context.ImportFD(file, window.Size())
	check(err)
	peer, err := context.Map([]*cuda.Allocation{allocation})
	check(err)
	defer peer.Close()
	fmt.Println(peer.Size()>>20, "MiB, mapped")
	// Output: 4 MiB, mapped
}
