package link

import (
	"embed"
	"maps"
	"strconv"
	"strings"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
)

//go:embed kernels
var sources embed.FS

// Kernels are the kernels for measuring on an architecture, such as sm_90a.
func Kernels(arch string) []kernel.Spec {
	names := []string{"pattern", "threads", "latency"}
	if hasBulk(arch) {
		names = append(names, "bulk", "rows")
	}
	headers := maps.Clone(device.Headers())
	headers["pattern.cuh"] = source("pattern.cuh")
	var specs []kernel.Spec
	for _, name := range names {
		specs = append(specs, kernel.Spec{Name: "link " + name, Source: source(name + ".cu"), Headers: headers, Arch: arch})
	}
	return specs
}

// hasBulk says whether an architecture has bulk copies, and dependent launches too.
func hasBulk(arch string) bool {
	number, err := strconv.Atoi(strings.TrimRight(strings.TrimPrefix(arch, "sm_"), "abcdefghijklmnopqrstuvwxyz"))
	return err == nil && number >= 90
}

func source(name string) string {
	text, err := sources.ReadFile("kernels/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}
