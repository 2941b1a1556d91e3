// Command plots draws the tables of docs/benchmarks that compare Weft with its peers, as SVG files beside the pages.
// The files are committed; go generate renews them, so a plot never says what its table does not.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("plots: ")
	dir := flag.String("dir", ".", "the folder of the pages")
	flag.Parse()
	if err := draw(*dir); err != nil {
		log.Fatal(err)
	}
}

func draw(dir string) error {
	gpu, err := table(filepath.Join(dir, "gpu.md"), "## Few tokens, four GPUs")
	if err != nil {
		return err
	}
	host, err := table(filepath.Join(dir, "host.md"), "## AllReduce against peers")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"peers.svg":      peers(gpu),
		"tokens.svg":     tokens(gpu),
		"all-reduce.svg": allReduce(host),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // all may read it
			return err
		}
	}
	return nil
}

// table is the first table of more than three columns below a heading, without its line of dashes. An empty first cell
// has what the one above it has.
func table(path, heading string) ([][]string, error) {
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, below, ok := strings.Cut(string(page), "\n"+heading+"\n")
	if !ok {
		return nil, fmt.Errorf("%s has no %q", path, heading)
	}
	var rows [][]string
	for line := range strings.Lines(below) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case len(cells) < 4:
			if len(rows) > 0 {
				return rows, nil
			}
		case strings.Contains(line, "---"):
		default:
			for i, c := range cells {
				cells[i] = strings.Trim(c, " *")
			}
			if cells[0] == "" && len(rows) > 0 {
				cells[0] = rows[len(rows)-1][0]
			}
			rows = append(rows, cells)
		}
	}
	return nil, fmt.Errorf("%s has no table below %q", path, heading)
}

// number is a cell's, or 0 where it is empty.
func number(cell string) float64 {
	n, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		return 0
	}
	return n
}

// peers are bars of dispatch and combine, for 1 and for 128 tokens.
func peers(rows [][]string) string {
	pairs := []struct{ operation, peer, name string }{
		{"dispatch, rank-major bf16", "MSCCL++ (quoted)", "dispatch, rank-major"},
		{"dispatch, by expert, bf16", "MSCCL++ (quoted)", "dispatch, by expert"},
		{"dispatch, fp8", "MSCCL++ (quoted)", "dispatch, fp8"},
		{"dispatch, fp8", "DeepEP V1 (quoted)", "dispatch, fp8"},
		{"combine, rank-major bf16", "MSCCL++ (quoted)", "combine, rank-major"},
		{"combine, by expert, bf16", "MSCCL++ (quoted)", "combine, by expert"},
		{"combine, exact sums", "DeepEP V1 (quoted)", "combine, exact sums"},
	}
	find := func(operation, of string, column int) float64 {
		for _, r := range rows {
			if r[0] == operation && r[1] == of {
				return number(r[column])
			}
		}
		return 0
	}
	c := chart{
		title: "Four H100s, peers on four H200s: us for one exchange, less is better",
		names: []string{"Weft", "MSCCL++, quoted", "DeepEP V1, quoted"},
	}
	for _, of := range []struct {
		column int
		says   string
	}{{2, "1 token a rank"}, {5, "128 tokens a rank"}} {
		g := group{name: of.says}
		for _, p := range pairs {
			ours, theirs := find(p.operation, "Weft", of.column), find(p.operation, p.peer, of.column)
			if ours == 0 || theirs == 0 {
				continue
			}
			series := 1
			if strings.HasPrefix(p.peer, "DeepEP") {
				series = 2
			}
			g.bars = append(g.bars, bar{p.name, ours, theirs, series})
		}
		c.groups = append(c.groups, g)
	}
	return c.bars()
}

// tokens are lines of rank-major exchanges over the number of tokens.
func tokens(rows [][]string) string {
	c := chart{
		title: "Four H100s, MSCCL++ on four H200s, rank-major rows of bf16: us by tokens a rank", x: "tokens a rank",
		names: []string{"Weft, dispatch", "MSCCL++, dispatch, quoted", "Weft, combine", "MSCCL++, combine, quoted"},
	}
	for i, of := range []struct{ operation, name string }{
		{"dispatch, rank-major bf16", "Weft"},
		{"dispatch, rank-major bf16", "MSCCL++ (quoted)"},
		{"combine, rank-major bf16", "Weft"},
		{"combine, rank-major bf16", "MSCCL++ (quoted)"},
	} {
		for _, r := range rows {
			if r[0] != of.operation || r[1] != of.name {
				continue
			}
			l := line{series: i}
			for column := 2; column < len(r); column++ {
				at := strings.Fields(rows[0][column])[0]
				l.points = append(l.points, point{number(at), number(r[column]), at})
			}
			c.lines = append(c.lines, l)
		}
	}
	return c.curves()
}

// allReduce are lines of the four libraries with two ranks over the number of bytes.
func allReduce(rows [][]string) string {
	c := chart{
		title: "AllReduce of fp32 on one host, 2 ranks: us by bytes", x: "bytes",
		names: []string{"Weft", "Open MPI", "MPICH", "Gloo"},
	}
	for i := range c.names {
		l := line{series: i}
		for _, r := range rows[1:] {
			l.points = append(l.points, point{bytes(r[0]), number(r[1+i]), r[0]})
		}
		c.lines = append(c.lines, l)
	}
	return c.curves()
}

// bytes is a size such as "4 KiB".
func bytes(cell string) float64 {
	n, unit, _ := strings.Cut(cell, " ")
	factor := map[string]float64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	return number(n) * factor
}
