// Command simdgen writes the AVX2 and AVX-512 kernels of internal/simd: one assembly file for each
// family of kernels, and one Go file with their declarations. The output is committed; go generate
// in internal/simd renews it.
//
// Every kernel is described once, over vectors of unspecified width, and emitted for both
// instruction sets.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// families are the assembly files, each with what emits it for one instruction set.
var families = []struct {
	name string
	emit func(*asm)
}{
	{"fold", emitFolds},
	{"fold_int", emitIntFolds},
	{"dot", emitDots},
	{"quant", emitQuantisation},
	{"move", emitMoves},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("simdgen: ")
	dir := flag.String("dir", ".", "directory to write to")
	flag.Parse()
	if err := generate(*dir); err != nil {
		log.Fatal(err)
	}
}

func generate(dir string) error {
	cfg := printer.Config{Name: "tools/simdgen", Pkg: "simd"}
	declarations := ir.NewFile()
	var kernels []*ir.Function
	for _, family := range families {
		ctx := build.NewContext()
		for _, set := range []isa{avx2, avx512} {
			family.emit(newAsm(ctx, set))
		}
		file, err := ctx.Result()
		if err != nil {
			return fmt.Errorf("%s: %w", family.name, err)
		}
		if err := pass.Compile.Execute(file); err != nil {
			return fmt.Errorf("%s: %w", family.name, err)
		}
		for _, fn := range file.Functions() {
			if err := checkRequirements(fn); err != nil {
				return err
			}
			declarations.AddSection(fn)
			kernels = append(kernels, fn)
		}
		if err := write(printer.NewGoAsm(cfg), file, filepath.Join(dir, family.name+"_amd64.s")); err != nil {
			return err
		}
	}
	if err := write(printer.NewStubs(cfg), declarations, filepath.Join(dir, "kernels_amd64.go")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "calls_amd64.go"), calls(kernels), 0o644)
}

func write(p printer.Printer, file *ir.File, path string) error {
	text, err := p.Print(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, append(bytes.TrimRight(text, "\n"), '\n'), 0o644)
}
