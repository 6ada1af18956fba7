package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (of *published) snapshot(name string) (*csi.Snapshot, error) {
	of.t.Helper()
	made, err := of.controller.CreateSnapshot(of.t.Context(), &csi.CreateSnapshotRequest{
		Name: name, SourceVolumeId: of.id,
	})
	return made.GetSnapshot(), err
}

func (of *published) write(name, text string) {
	of.t.Helper()
	if err := os.WriteFile(filepath.Join(of.pod, name), []byte(text), 0o644); err != nil {
		of.t.Fatal(err)
	}
}

// like makes a volume of a snapshot or of another volume.
func (of *published) like(name string, parameters map[string]string, source *csi.VolumeContentSource) error {
	_, err := of.controller.CreateVolume(of.t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountable}, Parameters: parameters,
		VolumeContentSource: source,
	})
	return err
}

func (of *published) deleteSnapshot(id string) {
	of.t.Helper()
	if _, err := of.controller.DeleteSnapshot(of.t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
		of.t.Error(err)
	}
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func wants(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("%v instead of %v", err, code)
	}
}

// A volume made of a snapshot has what was there then; one made of a volume has what is there now.
func TestVolumesAreMadeOfSnapshotsAndOfVolumes(t *testing.T) {
	dir := scratch(t)
	parameters := map[string]string{"server": serve(t, dir), "directory": "/volumes"}
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "original", parameters, nil)
	of.write("file", "first")
	taken, err := of.snapshot("snapshot-1")
	if err != nil {
		t.Fatal(err)
	}
	of.write("file", "second")
	again, err := of.snapshot("snapshot-1")
	if err != nil || again.GetSnapshotId() != taken.GetSnapshotId() ||
		again.GetCreationTime().AsTime() != taken.GetCreationTime().AsTime() {
		t.Errorf("%v, %v", again, err)
	}
	for name, source := range map[string]*csi.VolumeContentSource{
		"first": fromSnapshot(taken.GetSnapshotId()), "second": fromVolume(of.id),
	} {
		// A repeated call hears the same; one that wants something else does not.
		for range 2 {
			if err := of.like(name, parameters, source); err != nil {
				t.Fatal(err)
			}
		}
		wants(t, of.like(name, parameters, nil), codes.AlreadyExists)
		made := publishNewOf(t, endpoint, kubelet, name, parameters, source)
		if text, err := os.ReadFile(filepath.Join(made.pod, "file")); err != nil || string(text) != name {
			t.Errorf("%s has %q, %v", name, text, err)
		}
		made.write("file", "changed")
		made.end()
	}
	if text, err := os.ReadFile(filepath.Join(of.pod, "file")); err != nil || string(text) != "second" {
		t.Errorf("the original has %q, %v", text, err)
	}
	_, err = of.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: of.id})
	wants(t, err, codes.FailedPrecondition)
	of.deleteSnapshot(taken.GetSnapshotId())
	of.deleteSnapshot(taken.GetSnapshotId())
	wants(t, of.like("third", parameters, fromSnapshot(taken.GetSnapshotId())), codes.NotFound)
	of.end()
}

// A pod that puts something else in place of its volume's snapshots gets nothing of other volumes.
func TestPodsCannotLeadSnapshotsElsewhere(t *testing.T) {
	dir := scratch(t)
	parameters := map[string]string{"server": serve(t, dir), "directory": "/volumes"}
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	victim := publishNew(t, endpoint, kubelet, "victim", parameters, nil)
	if err := os.Mkdir(filepath.Join(victim.pod, "secret"), 0o755); err != nil {
		t.Fatal(err)
	}
	of := publishNew(t, endpoint, kubelet, "attacker", parameters, nil)
	place := filepath.Join(of.pod, ".snapshots")
	for _, target := range []string{"../victim", "/volumes/victim", "own"} {
		os.Mkdir(filepath.Join(of.pod, "own"), 0o755)
		if err := os.Symlink(target, place); err != nil {
			t.Logf("the file system refuses a link: %v", err)
			continue
		}
		if _, err := of.snapshot("secret"); err == nil {
			t.Errorf("a snapshot was taken in %s", target)
		}
		id := of.id + "@secret"
		if err := of.like("stolen", parameters, fromSnapshot(id)); err == nil {
			t.Errorf("a volume was made of what is in %s", target)
		}
		of.deleteSnapshot(id)
		os.Remove(place)
	}
	if names, err := os.ReadDir(victim.pod); err != nil || len(names) != 1 {
		t.Errorf("the other volume has %v, %v", names, err)
	}
	of.end()
	victim.end()
}

// Snapshots that pods take for themselves keep no volume from being deleted.
func TestSnapshotsOfPodsGoWithTheirVolume(t *testing.T) {
	dir := scratch(t)
	parameters := map[string]string{"server": serve(t, dir), "directory": "/volumes"}
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "volume", parameters, nil)
	for _, name := range []string{"a/b", ".snapshots/own", "a/.snapshots/own", "a/b/.snapshots"} {
		if err := os.MkdirAll(filepath.Join(of.pod, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// One that the driver has not taken is not deleted by it.
	of.deleteSnapshot(of.id + "@own")
	if _, err := os.Stat(filepath.Join(of.pod, ".snapshots/own/a")); err != nil {
		t.Error(err)
	}
	of.end()
	other := publishNew(t, endpoint, kubelet, "volume", parameters, nil)
	if names, err := os.ReadDir(other.pod); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	other.write("x", "text")
	if err := os.Mkdir(filepath.Join(other.pod, "ordinary"), 0o755); err != nil {
		t.Fatal(err)
	}
	other.end()
}

// The capacity of a volume is a limit, which grows with it.
func TestCapacityIsALimit(t *testing.T) {
	dir := scratch(t)
	parameters := map[string]string{"server": serve(t, dir), "directory": "/volumes"}
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishSized(t, endpoint, kubelet, "volume", parameters, 1<<20)
	path := filepath.Join(of.pod, "file")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o644); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("2 MiB in a volume of 1 MiB: %v", err)
	}
	os.Remove(path)
	asked := &csi.NodeGetVolumeStatsRequest{VolumeId: of.id, VolumePath: of.pod}
	stats, err := of.node.NodeGetVolumeStats(t.Context(), asked)
	if err != nil || stats.GetUsage()[0].GetTotal() != 1<<20 {
		t.Errorf("%v, %v", stats, err)
	}
	if _, err := of.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: of.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 3 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o644); err != nil {
		t.Errorf("2 MiB in a volume of 3 MiB: %v", err)
	}
	of.end()
}

// Identifiers come back, and stay as short as CSI wants them.
func TestIdentifiersOfSnapshots(t *testing.T) {
	volume := Volume{"tcp://server:7447/data", "/volumes/pvc-1@2"}
	for _, name := range []string{"snapshot-1", "Any Name/at all", strings.Repeat("x", 300), ".hidden"} {
		made, err := NewSnapshot(volume, name)
		if err != nil || len(made.ID()) > idBytesMax {
			t.Fatalf("%q, %v", made.ID(), err)
		}
		if back, err := ParseSnapshotID(made.ID()); err != nil || back != made {
			t.Errorf("%v comes back as %v, %v", made, back, err)
		}
	}
	long := Volume{"tcp://server:7447/data", "/" + strings.Repeat("d", 90)}
	if made, err := NewSnapshot(long, "snapshot-"+strings.Repeat("a", 50)); err == nil {
		t.Errorf("%q has %d bytes", made.ID(), len(made.ID()))
	}
	for _, id := range []string{"", "tcp://server/data#/a", "tcp://server/data#/a@", "tcp://server/data#/a@../b", "x@y"} {
		if found, err := ParseSnapshotID(id); err == nil {
			t.Errorf("%q is %v", id, found)
		}
	}
}
