package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// entry is the result of one part of a run of run.sh, or of a command run by hand.
type entry struct {
	Date    string `json:"date"`
	GPUs    string `json:"gpus"` // "2 x H200"
	Driver  string `json:"driver"`
	CUDA    string `json:"cuda"`
	Build   string `json:"build,omitempty"` // a revision
	Part    string `json:"part"`            // of run.sh
	What    string `json:"what,omitempty"`
	Passed  int    `json:"passed,omitempty"` // tests, with their parts
	Seconds int    `json:"seconds,omitempty"`
	Result  string `json:"result"` // passed, failed or skipped
	Note    string `json:"note,omitempty"`
}

// header is the first line of results.jsonl.
type header struct {
	Date  string `json:"date"`
	Build string `json:"build"`
	Flags string `json:"flags"`
}

// outcome is another line of it.
type outcome struct {
	Part    string `json:"part"`
	Seconds int    `json:"seconds"`
	Result  string `json:"result"`
	Passed  int    `json:"passed"`
	Note    string `json:"note"`
	What    string `json:"what"` // of a step of "run.sh several"
	GPUs    int    `json:"gpus"` // the same: of the machine's; 0: all
}

// machine is what doctor.json says of the GPUs.
type machine struct {
	GPU struct {
		Driver string `json:"driver"`
	} `json:"gpu"`
	CUDA struct {
		Version string `json:"version"`
		Devices []struct {
			Name string `json:"name"`
		} `json:"devices"`
	} `json:"cuda"`
}

// gpus names so many of them, or all: "2 x H200".
func (m machine) gpus(used int) string {
	all := m.CUDA.Devices
	if len(all) == 0 {
		return "none"
	}
	if used == 0 {
		used = len(all)
	}
	return fmt.Sprintf("%d x %s", used, strings.TrimPrefix(all[0].Name, "NVIDIA "))
}

// readRun reads what run.sh left in a folder. Parts that were skipped are no part of the record.
func readRun(logs, what string) ([]entry, error) {
	text, err := os.ReadFile(filepath.Join(logs, "doctor.json"))
	if err != nil {
		return nil, err
	}
	var m machine
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s/doctor.json: %w", logs, err)
	}
	if text, err = os.ReadFile(filepath.Join(logs, "results.jsonl")); err != nil {
		return nil, err
	}
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	var h header
	if err := json.Unmarshal(first, &h); err != nil {
		return nil, fmt.Errorf("%s/results.jsonl: %w", logs, err)
	}
	parts, err := parse[outcome](rest)
	if err != nil {
		return nil, fmt.Errorf("%s/results.jsonl: %w", logs, err)
	}
	var entries []entry
	for _, p := range parts {
		if p.Result == "skipped" {
			continue
		}
		entries = append(entries, entry{
			Date: h.Date, Build: h.Build, GPUs: m.gpus(p.GPUs), Driver: m.GPU.Driver, CUDA: m.CUDA.Version,
			Part: p.Part, What: strings.Join(strings.Fields(h.Flags+" "+p.What+" "+what), " "),
			Passed: p.Passed, Seconds: p.Seconds, Result: p.Result, Note: p.Note,
		})
	}
	if len(entries) == 0 {
		return nil, errors.New("nothing ran there that was not skipped")
	}
	return entries, nil
}

// parse reads lines of JSON.
func parse[T any](text []byte) ([]T, error) {
	var all []T
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var one T
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func encode(entries []entry) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, one := range entries {
		if err := e.Encode(one); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
