package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// bill is what a release is made of.
type bill struct {
	version, commit string
	at              time.Time
	artifacts       []artifact
	modules         []module
	licences        licences
}

// artifact is a file of the release.
type artifact struct {
	name    string
	sha256  string
	modules []module
}

func readArtifact(path string) (artifact, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return artifact{}, err
	}
	sum := sha256.Sum256(data)
	return artifact{name: filepath.Base(path), sha256: hex.EncodeToString(sum[:])}, nil
}

// The parts of CycloneDX 1.6 that a bill needs.
type (
	document struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version,omitempty"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licences   []licensed `json:"licenses,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash     struct{ Alg, Content string }
	licensed struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property   struct{ Name, Value string }
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

func (h hash) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"alg": h.Alg, "content": h.Content})
}

func (p property) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"name": p.Name, "value": p.Value})
}

func underLicence(id string) []licensed {
	l := make([]licensed, 1)
	l[0].License.ID = id
	return l
}

func purl(m module) string { return fmt.Sprintf("pkg:golang/%s@%s", m.path, m.version) }

func (b *bill) json() ([]byte, error) {
	us := module{path: "github.com/weftgo/weft", version: "v" + b.version}
	d := document{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{
			Timestamp: b.at.Format(time.RFC3339),
			Component: component{
				Type: "library", Ref: purl(us), Name: "weft", Version: b.version, PURL: purl(us),
				Licences: underLicence("Apache-2.0"), Properties: []property{{"commit", b.commit}},
			},
		},
		Components: []component{}, Dependencies: []dependency{},
	}
	whole := dependency{Ref: purl(us)}
	for _, a := range b.artifacts {
		d.Components = append(d.Components, component{
			Type: "file", Ref: a.name, Name: a.name, Hashes: []hash{{"SHA-256", a.sha256}},
			Licences: underLicence("Apache-2.0"),
		})
		needs := dependency{Ref: a.name}
		for _, m := range a.modules {
			needs.DependsOn = append(needs.DependsOn, purl(m))
		}
		d.Dependencies = append(d.Dependencies, needs)
		whole.DependsOn = append(whole.DependsOn, a.name)
	}
	d.Dependencies = append(d.Dependencies, whole)
	for _, m := range b.modules {
		c := component{
			Type: "library", Ref: purl(m), Name: m.path, Version: m.version, PURL: purl(m),
			Licences: underLicence(b.licences[m.path].id),
		}
		if m.sum != "" {
			c.Properties = []property{{"go.sum", m.sum}}
		}
		d.Components = append(d.Components, c)
	}
	// The number is the content's, so equal releases have equal bills.
	text, err := d.encode()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // a UUID of version 8
	d.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return d.encode()
}

func (d *document) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}
