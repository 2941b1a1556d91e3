package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write makes the record and the logs of a run, and returns their folders.
func write(t *testing.T, record string) (dir, logs string) {
	t.Helper()
	dir, logs = t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(dir, "gpu-tests.jsonl"): record,
		filepath.Join(logs,
			"doctor.json"): `{"weft":"devel","gpu":{"driver":"580.159"},"cuda":{"version":"13.0","devices":[` +
			`{"name":"NVIDIA H200"},{"name":"NVIDIA H200"}]}}` + "\n",
		filepath.Join(logs, "results.jsonl"): `{"date":"2026-11-25","build":"abc1234","flags":"-test.short"}` + "\n" +
			`{"part":"test-ep","seconds":12,"result":"passed","passed":34,"note":""}` + "\n" +
			`{"part":"nccl","seconds":0,"result":"skipped","passed":0,"note":"no libnccl.so.2"}` + "\n" +
			`{"part":"link","seconds":3,"result":"failed","passed":0,"note":"it took | too long"}` + "\n" +
			`{"part":"tune","seconds":4,"result":"passed","passed":0,"note":"","what":"weft tune ep","gpus":1}` + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, logs
}

const older = `{"date":"2026-11-22","gpus":"2 x H200","driver":"570","cuda":"12.8",` +
	`"part":"link","result":"passed"}` + "\n"

// A run is appended once, without what it skipped, and stands before older ones on the page.
func TestAdd(t *testing.T) {
	dir, logs := write(t, older)
	if err := run(dir, logs, "two ranks"); err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(filepath.Join(dir, "gpu-tests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(record), "\n"); got != 4 || !strings.HasPrefix(string(record), older) {
		t.Errorf("%d lines in the record, want 4, the older one first:\n%s", got, record)
	}
	if err := run(dir, logs, "two ranks"); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "gpu-tests.jsonl")); err != nil || string(again) != string(record) {
		t.Errorf("added once more: %v\n%s", err, again)
	}
	text, err := os.ReadFile(filepath.Join(dir, "gpu-tests.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Newest")
	for _, want := range []string{
		"| link | - | failed 2026-11-25 |\n| test-ep | - | passed 2026-11-25 |\n| tune | passed 2026-11-25 | - |\n",
		"| 2026-11-25 | 1 x H200 | 580.159, 13.0 | tune | -test.short weft tune ep two ranks, at abc1234 | passed, 4 s |\n",
		"| 2026-11-25 | 2 x H200 | 580.159, 13.0 | link | -test.short two ranks, at abc1234 | failed, 3 s; " +
			"it took \\| too long |\n",
		"| 2026-11-25 | 2 x H200 | 580.159, 13.0 | test-ep | -test.short two ranks, at abc1234 | passed, 34 tests, 12 s |\n" +
			"| 2026-11-22 | 2 x H200 | 570, 12.8 | link |  | passed |\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// The newest result is failed where a record of the newest build is, or of the newest day without a build.
func TestNewest(t *testing.T) {
	for _, c := range []struct {
		want    string
		entries []entry
	}{
		{"-", []entry{{Date: "2026-11-25", Part: "link", GPUs: "2 x H200", Result: "passed"}}},
		{"failed 2026-11-26", []entry{
			{Date: "2026-11-25", Build: "b", Result: "failed"},
			{Date: "2026-11-26", Build: "a", Result: "passed"},
			{Date: "2026-11-26", Build: "b", Result: "passed"},
		}},
		{"passed 2026-11-26", []entry{
			{Date: "2026-11-26", Build: "a", Result: "failed"},
			{Date: "2026-11-26", Result: "failed"},
			{Date: "2026-11-26", Build: "b", Result: "passed"},
			{Date: "2026-11-26", Build: "b", GPUs: "4 x H200", Result: "failed"},
			{Date: "2026-11-26", Build: "b", Part: "tune", Result: "failed"},
		}},
		{"failed 2026-11-26", []entry{{Date: "2026-11-26", Result: "failed"}, {Date: "2026-11-26", Result: "passed"}}},
		{"passed 2026-11-26", []entry{{Date: "2026-11-25", Result: "failed"}, {Date: "2026-11-26", Result: "passed"}}},
	} {
		for i := range c.entries {
			c.entries[i].Part = cmp.Or(c.entries[i].Part, "test-ep")
			c.entries[i].GPUs = cmp.Or(c.entries[i].GPUs, "4 x H100")
		}
		if got := newest(c.entries, "test-ep", "4 x H100"); got != c.want {
			t.Errorf("%s, want %s, of %+v", got, c.want, c.entries)
		}
	}
}

// A record or a run that is not what it should be changes nothing.
func TestBroken(t *testing.T) {
	unknown, _ := write(t, older+`{"day":"2026-11-23"}`+"\n")
	if err := run(unknown, "", ""); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("an unknown field: %v", err)
	}
	dir, logs := write(t, older)
	if err := os.WriteFile(filepath.Join(logs, "results.jsonl"), []byte(`{"date":"2026-11-25"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, logs, ""); err == nil {
		t.Error("a run without parts was added")
	}
	if record, _ := os.ReadFile(filepath.Join(dir, "gpu-tests.jsonl")); string(record) != older {
		t.Errorf("the record is now %s", record)
	}
}
