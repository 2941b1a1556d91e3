// Command gputests keeps the record of what ran on which GPUs, and writes the page that shows it.
//
//	gputests -dir DOCS/benchmarks                          writes gpu-tests.md from gpu-tests.jsonl, both there
//	gputests -dir DOCS/benchmarks -add LOGS [-what TEXT]   first appends a run: LOGS is the folder where
//	                                                       run.sh left its results; what the record
//	                                                       has already is not entered again
//
// A run is results.jsonl, a line for the run and one for each part, and doctor.json, which says
// what the machine was.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	dir := flag.String("dir", "docs/benchmarks", "the folder of the record and the page")
	logs := flag.String("add", "", "append the run whose results are in this folder")
	what := flag.String("what", "", "with -add: what was special about the run")
	flag.Parse()
	if err := run(*dir, *logs, *what); err != nil {
		fmt.Fprintln(os.Stderr, "gputests:", err)
		os.Exit(1)
	}
}

func run(dir, logs, what string) error {
	record := filepath.Join(dir, "gpu-tests.jsonl")
	text, err := os.ReadFile(record)
	if err != nil {
		return err
	}
	entries, err := parse[entry](text)
	if err != nil {
		return fmt.Errorf("%s: %w", record, err)
	}
	if logs != "" {
		added, err := readRun(logs, what)
		if err != nil {
			return err
		}
		known := len(entries)
		for _, e := range added {
			if !slices.Contains(entries[:known], e) {
				entries = append(entries, e)
			}
		}
		if text, err = encode(entries); err != nil {
			return err
		}
		if err := os.WriteFile(record, text, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "gpu-tests.md"), page(entries), 0o644)
}
