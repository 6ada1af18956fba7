package main

import (
	"strings"
	"testing"
)

func TestIdentifiers(t *testing.T) {
	for _, volume := range []Volume{
		{"tcp://server:7447/data", "/volumes/pvc-1"},
		{"tcp://a,b,c/data", "/"},
		{"fabric://tcp;ofi_rxm/10.0.0.1:7447/x", "/a#b"},
	} {
		id, err := volume.ID()
		if err != nil {
			t.Fatal(err)
		}
		if found, err := ParseID(id); err != nil || found != volume {
			t.Errorf("%s: %v, %v", id, found, err)
		}
	}
	long := Volume{"tcp://server/data", "/" + strings.Repeat("x", 200)}
	if _, err := long.ID(); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("%v", err)
	}
	for _, wrong := range []string{
		"", "tcp://server", "#/a", "http://server#/a", "tcp://server#a", "tcp://server#/../a", "tcp://server#/a/..",
		"tcp://server?key=/etc/shadow#/a", "tcp://ser ver#/a", "-o#/a", "tcp://server#/a\x00b",
	} {
		if found, err := ParseID(wrong); err == nil {
			t.Errorf("%q is %v", wrong, found)
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"pvc-1", "PVC_2.x", ".hidden", "..", ".", "a/b", "ü", "", strings.Repeat("x", 65),
		strings.Repeat("x", 66), "a\nb", creatingPrefix + "x", deletingPrefix + "x",
	} {
		found := nameOf(name)
		if found == "" || found[0] == '.' || strings.ContainsAny(found, "/\n\x00") || len(found) > 64 {
			t.Errorf("%q becomes %q", name, found)
		}
		if before, twice := seen[found]; twice {
			t.Errorf("%q and %q both become %q", before, name, found)
		}
		seen[found] = name
	}
	if nameOf("pvc-1") != "pvc-1" {
		t.Error("a plain name changes")
	}
}

func TestParametersAndOptions(t *testing.T) {
	for given, said := range map[[2]string]string{
		{"sever", "tcp://x"}:    "unknown",
		{"onDelete", "archive"}: "unknown",
		{"mode", "rwx"}:         "octal",
		{"mode", "77777"}:       "octal",
	} {
		_, err := parseParameters(map[string]string{"server": "tcp://x/", given[0]: given[1]})
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%v: %v", given, err)
		}
	}
	if _, err := parseParameters(nil); err == nil || !strings.Contains(err.Error(), "server") {
		t.Errorf("%v", err)
	}
	given := map[string]string{"server": "tcp://x/", "csi.storage.k8s.io/pvc/name": "p", "mode": "0750"}
	found, err := parseParameters(given)
	if err != nil || found.mode != 0o750 || found.directory != "/" {
		t.Errorf("%v, %v", found, err)
	}
	for _, wrong := range []string{"key=/etc/shadow", "noatime,trace=/etc/passwd", "log=/x", "metrics"} {
		if checkOptions([]string{"noatime", wrong}) == nil {
			t.Errorf("%q reaches files of the node", wrong)
		}
	}
	if err := checkOptions([]string{"noatime", "cache=leased,ro"}); err != nil {
		t.Error(err)
	}
}
