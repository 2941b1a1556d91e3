package tuningfile

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestProfileOf(t *testing.T) {
	for _, tc := range []struct {
		gpu    string
		shared bool
		want   string
	}{
		{"NVIDIA H200", false, "h200-nvswitch"},
		{"NVIDIA H200", true, "h200-shared"},
		{"NVIDIA H100 80GB HBM3", false, "h100-nvswitch"},
		{"NVIDIA H100 80GB HBM3", true, "h100-shared"},
		{"NVIDIA A100-SXM4-80GB", false, "a100-sxm4-80gb-peers"},
		{"NVIDIA A100-SXM4-80GB", true, "a100-sxm4-80gb-shared"},
		{"", false, "-peers"},
	} {
		if got := ProfileOf(tc.gpu, tc.shared); got != tc.want {
			t.Errorf("%q, shared %t: profile %q, want %q", tc.gpu, tc.shared, got, tc.want)
		}
	}
}

func TestProfiles(t *testing.T) {
	files := fstest.MapFS{
		"profiles/a.json": {Data: []byte("1")}, "profiles/b.json": {Data: []byte("22")},
		"profiles/c.txt": {Data: []byte("333")}, "d.json": {Data: []byte("4444")},
	}
	got, err := Profiles(files, func(_ string, text []byte) (int, error) { return len(text), nil })
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 2}, got); diff != "" || err != nil {
		t.Errorf("%v -want +got:\n%s", err, diff)
	}
	wrong := errors.New("wrong")
	if _, err := Profiles(files, func(profile string, _ []byte) (int, error) {
		if profile == "b" {
			return 0, wrong
		}
		return 0, nil
	}); !errors.Is(err, wrong) {
		t.Errorf("a table that is refused: %v", err)
	}
}
