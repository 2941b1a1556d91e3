package doctor

import (
	"fmt"
	"strings"
)

// gpuFindings are about everything that the GPU engine needs.
func gpuFindings(m Machine) []Finding {
	out := []Finding{gpuFinding(m)}
	add := func(g Grade, name, value, meaning string) {
		out = append(out, Finding{name, value, meaning, g})
	}
	if m.GPU.Driver != "" {
		add(Good, "GPU driver", m.GPU.Driver, "kernel module loaded")
	}
	out = append(out, driverFindings(m)...)
	switch c := m.Compiler; {
	case c.Path != "":
		add(Good, "NVRTC", c.Version+" in "+c.Path, "compiles GPU kernels")
	case m.Libraries[libnvrtc13] != "" || m.Libraries[libnvrtc12] != "":
		add(Bad, "NVRTC", "does not load", c.Err)
	default:
		add(Note, "NVRTC", "not found",
			"GPU kernels cannot be compiled here: python3 -m pip install nvidia-cuda-nvrtc, or set WEFT_NVRTC, "+
				"or carry a cache here (weft compile)")
	}
	for _, c := range m.Caches {
		out = append(out, cacheFinding(c))
	}
	library := func(lib, have, lack string) {
		if p := m.Libraries[lib]; p != "" {
			add(Good, lib, p, have)
			return
		}
		add(Note, lib, "not found", lack)
	}
	library(libcuda, "the CUDA driver", "no CUDA; not needed by the host engine")
	library(libnvml, "GPU topology can be read", "no GPU topology")
	out = append(out, libfabricFinding(m), nicFinding(m), fabricFinding(m))
	if m.Push != (Push{}) {
		out = append(out, pushFinding(m.Push))
	}
	torch, meaning, g := m.Torch, "its libraries are looked at too", Good
	if torch == "" {
		torch, meaning, g = "not found", "not needed", Note
	}
	add(g, "torch", torch, meaning)
	add(Note, "multicast", "not probed", "probing can disturb a shared machine; Weft does not need it, and uses it "+
		"where WEFT_MULTICAST is 1")
	return out
}

// gpuFinding uses the driver's files, which exist even where the driver does not work.
func gpuFinding(m Machine) Finding {
	f := Finding{Name: "GPUs", Value: gpuNames(m.GPU)}
	switch seen := m.GPU.gpuNodes(); {
	case len(m.CUDA.Devices) > 0:
		f.Value, f.Meaning = fmt.Sprintf("%d", len(m.CUDA.Devices)), "this process may use them"
		if len(m.GPU.Names) > 0 {
			f.Value = gpuNames(m.GPU)
		}
		if n := len(m.GPU.Names); n > len(m.CUDA.Devices) {
			f.Meaning = fmt.Sprintf("this process may use %d of them (CUDA_VISIBLE_DEVICES, or the container)",
				len(m.CUDA.Devices))
		}
	case seen > 0 && m.Libraries[libcuda] == "":
		f.Grade, f.Meaning = Bad, "devices are there but libcuda.so.1 is not: install the driver's "+
			"libraries, or map them into the container"
	case seen > 0:
		f.Grade, f.Meaning = Bad, "devices are there but CUDA sees none: see the line about CUDA"
	case len(m.GPU.Names) > 0:
		f.Grade, f.Meaning = Bad, "the driver knows them but /dev/nvidia* is missing: give the container its devices"
	default:
		f.Value, f.Grade, f.Meaning = "none", Note, "the host engine does everything"
	}
	return f
}

// driverFindings use the driver's answers: its version, each kind of device, and peer access.
func driverFindings(m Machine) []Finding {
	c := m.CUDA
	switch {
	case c.Missing && m.Libraries[libcuda] == "":
		return nil // libcuda's own line says so
	case c.Err != "" && m.GPU.gpuNodes() == 0:
		return []Finding{{"CUDA", "does not work", c.Err, Note}}
	case c.Err != "":
		return []Finding{{"CUDA", "does not work", c.Err, Bad}}
	}
	out := []Finding{{"CUDA", c.Version, "the newest that the driver supports", Good}}
	for first := 0; first < len(c.Devices); {
		d, last := c.Devices[first], first
		for last+1 < len(c.Devices) && c.Devices[last+1] == d {
			last++
		}
		out = append(out, deviceFinding(d, first, last))
		first = last + 1
	}
	if len(c.Devices) > 1 {
		out = append(out, peerFinding(c.Peers))
	}
	return out
}

func deviceFinding(d Device, first, last int) Finding {
	f := Finding{Name: fmt.Sprintf("GPU %d", first)}
	if last > first {
		f.Name = fmt.Sprintf("GPUs %d-%d", first, last)
	}
	f.Value = fmt.Sprintf("%s, %s, %d SMs, %s", d.Name, d.Arch, d.SMs, gib(d.Memory))
	switch {
	case !d.VMM:
		f.Grade, f.Meaning = Bad, "no virtual memory management, which windows need: no GPU engine here"
	case d.FD && d.Fabric:
		f.Meaning = "windows are shared between processes, and between hosts of an NVLink domain"
	case d.FD:
		f.Meaning = "windows are shared between processes; no fabric handles"
	default:
		f.Grade, f.Meaning = Note, "windows cannot be shared between processes: ranks must be goroutines of one"
	}
	return f
}

// peerFinding lists peer access: all, or for each GPU the others.
func peerFinding(peers [][]bool) Finding {
	f := Finding{Name: "peers", Value: "all", Meaning: "every GPU reaches the memory of every other"}
	var rows []string
	for i, reach := range peers {
		var names []string
		for k, can := range reach {
			if can && k != i {
				names = append(names, fmt.Sprint(k))
			}
		}
		if len(names) < len(peers)-1 {
			f.Grade = Note
		}
		if len(names) == 0 {
			names = []string{"none"}
		}
		rows = append(rows, fmt.Sprintf("%d: %s", i, strings.Join(names, ",")))
	}
	if f.Grade != Good {
		f.Value, f.Meaning = strings.Join(rows,
			"; "), "each reaches only these: take GPUs that reach each other (CUDA_VISIBLE_DEVICES)"
	}
	return f
}

func cacheFinding(c Cache) Finding {
	f := Finding{
		Name: "kernel cache", Value: fmt.Sprintf("%s: %d kernels", c.Dir, c.Kernels),
		Meaning: "read, for WEFT_CACHE names it",
	}
	if c.Written {
		f.Meaning = "read and written"
	}
	switch {
	case c.Absent && c.Written:
		f.Value, f.Meaning, f.Grade = c.Dir, "made when the first kernel is compiled", Note
	case c.Absent:
		f.Value, f.Meaning, f.Grade = c.Dir, "WEFT_CACHE names it and it is not there", Bad
	case c.Err != "":
		f.Meaning, f.Grade = "not used: "+c.Err, Bad
	case len(c.Refused) > 0:
		f.Meaning = fmt.Sprintf("%d more are refused and compiled anew: %s: %s", len(c.Refused),
			c.Refused[0].Path, c.Refused[0].Err)
		f.Grade = Note
	}
	return f
}
