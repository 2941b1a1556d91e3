// Command gputables prints the tables of docs/benchmarks that the results of "run.sh several" have figures for, as
// Markdown, with the targets that each misses.
//
//	gputables LOGS     LOGS is the folder of the results, unpacked
//
// Each table stands with its machine, date and command. A figure of a run whose output was wrong is shown as "wrong".
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gputables LOGS")
		os.Exit(2)
	}
	text, err := tables(os.Args[1])
	fmt.Print(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gputables:", err)
		os.Exit(1)
	}
}

// row is what tables show of a line of JSON: see "weft bench --help" and those of its commands.
type row struct {
	Op        string  `json:"op"`
	Engine    string  `json:"engine"`
	Contract  string  `json:"contract"`
	Layout    string  `json:"layout"`
	DType     string  `json:"dtype"`
	Reduction string  `json:"reduction"`
	Ranks     int     `json:"ranks"`
	GPUs      int     `json:"gpus"`
	Tokens    int     `json:"tokens"`
	SMs       int     `json:"sms"`
	Bytes     int64   `json:"bytes"`
	WireBytes int64   `json:"wire_bytes"`
	Operand   string  `json:"operand"`
	Algorithm string  `json:"algorithm"`
	P50       float64 `json:"p50_us"`
	Floor     float64 `json:"floor_us"`
	Kernel    float64 `json:"kernel_us"`
	Cold      float64 `json:"cold_us"`
	GBps      float64 `json:"gbps"`
	BusBW     float64 `json:"busbw"`
	Way       string  `json:"way"`
	Pattern   string  `json:"pattern"`
	Alone     float64 `json:"alone_us"`
	Beside    float64 `json:"beside_us"`
	Product   float64 `json:"product_slowdown"`
	Share     float64 `json:"sm_slowdown"`
	Join      float64 `json:"join_us"`
	Handle    float64 `json:"handle_us"`
	Dispatch  float64 `json:"dispatch_us"`
	Verified  *bool   `json:"verified"`
	Source    string  `json:"source"`
	Skipped   string  `json:"skipped"`
}

// us is a time, to three digits and two decimals at most.
func (r row) us(t float64) string {
	switch {
	case r.Verified != nil && !*r.Verified:
		return "**wrong**"
	case t >= 100:
		return fmt.Sprintf("%.0f", t)
	case t >= 10:
		return fmt.Sprintf("%.1f", t)
	}
	return fmt.Sprintf("%.2f", t)
}

// step is one with its results.
type step struct {
	name, command, result string
	rows                  []row
	log                   string
}

// run is the results of a call.
type run struct {
	machine, date string
	steps         []step
}

// tables are those of all steps that have any, in the order of the pages.
func tables(logs string) (string, error) {
	r, err := read(logs)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, %s\n", r.machine, r.date)
	for _, of := range []func(run) []table{few, many, overlap, links, start, collectives, peers, plans} {
		for _, t := range of(r) {
			b.WriteString(t.String())
		}
	}
	if !strings.Contains(b.String(), "|") {
		return "", errors.New("no step there has measured anything")
	}
	return b.String(), nil
}

// read takes results.jsonl and doctor.json, and of each step the lines of JSON or the log.
func read(logs string) (run, error) {
	var r run
	var doctor struct {
		GPU struct {
			Driver string `json:"driver"`
		} `json:"gpu"`
		CUDA struct {
			Devices []struct {
				Name string `json:"name"`
			} `json:"devices"`
		} `json:"cuda"`
	}
	text, err := os.ReadFile(filepath.Join(logs, "doctor.json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &doctor); err != nil {
		return r, fmt.Errorf("doctor.json: %w", err)
	}
	r.machine = "no GPU"
	if d := doctor.CUDA.Devices; len(d) > 0 {
		r.machine = fmt.Sprintf("%d x %s, driver %s", len(d), d[0].Name, doctor.GPU.Driver)
	}
	if text, err = os.ReadFile(filepath.Join(logs, "results.jsonl")); err != nil {
		return r, err
	}
	var head struct{ Date, Build string }
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(first, &head); err != nil {
		return r, fmt.Errorf("results.jsonl: %w", err)
	}
	r.date = strings.TrimSuffix(head.Date+", at "+head.Build, ", at ")
	files, err := filepath.Glob(filepath.Join(logs, "steps", "*"))
	if err != nil {
		return r, err
	}
	for _, file := range files {
		s := step{name: filepath.Base(file)}
		var of struct{ What, Result string }
		if text, err = os.ReadFile(file); err != nil {
			return r, err
		}
		if err := json.Unmarshal(text, &of); err != nil {
			return r, fmt.Errorf("steps/%s: %w", s.name, err)
		}
		s.command, s.result = of.What, of.Result
		if text, err := os.ReadFile(filepath.Join(logs, s.name+".log")); err == nil {
			s.log = string(text)
		}
		text, err := os.ReadFile(filepath.Join(logs, s.name+".json"))
		if err == nil && !strings.HasPrefix(s.command, "weft tune") {
			if s.rows, err = rows(text); err != nil {
				return r, fmt.Errorf("%s.json: %w", s.name, err)
			}
		}
		r.steps = append(r.steps, s)
	}
	return r, nil
}

// rows reads lines of JSON. The last one may have been cut short.
func rows(text []byte) ([]row, error) {
	var all []row
	for line := range bytes.Lines(text) {
		var one row
		if err := json.Unmarshal(line, &one); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				return all, nil
			}
			return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// benchmark is a line of a Go benchmark: its name without the number of processors, and its figures.
var benchmark = regexp.MustCompile(`(?m)^Benchmark\w+/(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)
