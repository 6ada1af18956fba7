package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// program is `ferrite`; tests that need it, or FUSE and root, are skipped without.
func program(t *testing.T) string {
	t.Helper()
	found := os.Getenv("FERRITE_BIN")
	if found == "" {
		t.Skip("SKIPPED: FERRITE_BIN does not name the program ferrite")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("SKIPPED: volumes are mounted by root, through /dev/fuse")
	}
	return found
}

// scratch is a directory on a file system that does not care how many mounts below it come and go.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ferrite-csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		table, _ := os.ReadFile("/proc/self/mountinfo")
		if strings.Contains(string(table), dir) {
			t.Errorf("mounts are left below %s", dir)
			left := "grep -o '" + dir + "[^ ]*' /proc/self/mountinfo"
			exec.Command("sh", "-c", left+" | sort -r | xargs -n 1 umount -l").Run()
		}
		os.RemoveAll(dir)
	})
	return dir
}

// serve is a server with one export; its address.
func serve(t *testing.T, dir string, more ...string) string {
	t.Helper()
	ferrite := program(t)
	pool := filepath.Join(dir, "pool")
	if said, err := exec.Command(ferrite, "mkfs", pool, "--size", "64M").CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, said)
	}
	address := freeAddress(t)
	startServer(t, pool, address, more...)
	return address + "/data"
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "tcp://" + listener.Addr().String()
}

// startServer returns once the server listens.
func startServer(t *testing.T, pool, address string, more ...string) *exec.Cmd {
	t.Helper()
	args := []string{"serve", pool, "--listen", address, "--name", "data", "--no-root-squash"}
	server := exec.Command(program(t), append(args, more...)...)
	var said bytes.Buffer
	server.Stderr = &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGTERM)
		server.Wait()
	})
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if connection, err := net.Dial("tcp", strings.TrimPrefix(address, "tcp://")); err == nil {
			connection.Close()
			return server
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("the server does not listen: %s", said.String())
		}
	}
}

// driver is a running driver of both parts; its socket, and the directory of its kubelet.
func driver(t *testing.T, dir string, mounter Mounter) (endpoint, kubelet string) {
	t.Helper()
	kubelet = filepath.Join(dir, "kubelet")
	endpoint = filepath.Join(dir, "csi.sock")
	if err := os.MkdirAll(kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	of := settings{mode: "all", nodeID: "node-1", stateDir: filepath.Join(dir, "state"), kubeletDir: kubelet}
	serves := server(of, mounter)
	go serves.Serve(listener)
	t.Cleanup(serves.GracefulStop)
	return endpoint, kubelet
}

func processes(t *testing.T, dir string) *Processes {
	return &Processes{Program: program(t), StateDir: filepath.Join(dir, "state", "mounts")}
}

func dial(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// The community's own test of drivers.
func TestSanity(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	config := sanity.NewTestConfig()
	config.Address = "unix://" + endpoint
	config.TargetPath = filepath.Join(kubelet, "target")
	config.StagingPath = filepath.Join(kubelet, "staging")
	config.TestVolumeParameters = map[string]string{"server": address, "directory": "/volumes"}
	config.TestVolumeSize = 1 << 20
	config.TestVolumeExpandSize = 2 << 20
	config.IdempotentCount = 3
	sanity.Test(t, config)
}

var mountable = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
}

// published makes a volume, and publishes it for a pod; its identifier and path.
type published struct {
	t                *testing.T
	id, staging, pod string
	context          map[string]string
	node             csi.NodeClient
	controller       csi.ControllerClient
}

func publishNew(t *testing.T, endpoint, kubelet, name string, parameters, secrets map[string]string) *published {
	t.Helper()
	return publishLike(t, endpoint, kubelet, name, parameters, secrets, &csi.CreateVolumeRequest{})
}

// publishNewOf makes the volume of another one, or of a snapshot.
func publishNewOf(
	t *testing.T, endpoint, kubelet, name string, parameters map[string]string, source *csi.VolumeContentSource,
) *published {
	t.Helper()
	return publishLike(t, endpoint, kubelet, name, parameters, nil, &csi.CreateVolumeRequest{VolumeContentSource: source})
}

func publishSized(
	t *testing.T, endpoint, kubelet, name string, parameters map[string]string, bytes int64,
) *published {
	t.Helper()
	wanted := &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}}
	return publishLike(t, endpoint, kubelet, name, parameters, nil, wanted)
}

func publishLike(
	t *testing.T, endpoint, kubelet, name string, parameters, secrets map[string]string,
	wanted *csi.CreateVolumeRequest,
) *published {
	t.Helper()
	connection := dial(t, endpoint)
	of := &published{
		t: t, node: csi.NewNodeClient(connection), controller: csi.NewControllerClient(connection),
		staging: filepath.Join(kubelet, "staging", name), pod: filepath.Join(kubelet, "pods", name),
	}
	made, err := of.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountable}, Parameters: parameters, Secrets: secrets,
		VolumeContentSource: wanted.VolumeContentSource, CapacityRange: wanted.CapacityRange,
	})
	if err != nil {
		t.Fatal(err)
	}
	of.id, of.context = made.GetVolume().GetVolumeId(), made.GetVolume().GetVolumeContext()
	if _, err = of.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: of.id, StagingTargetPath: of.staging, VolumeCapability: mountable, VolumeContext: of.context,
		Secrets: secrets,
	}); err != nil {
		t.Fatal(err)
	}
	if err := of.publish(of.pod, false); err != nil {
		t.Fatal(err)
	}
	return of
}

func (of *published) publish(pod string, isReadOnly bool) error {
	_, err := of.node.NodePublishVolume(of.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: of.id, StagingTargetPath: of.staging, TargetPath: pod, VolumeCapability: mountable,
		VolumeContext: of.context, Readonly: isReadOnly,
	})
	return err
}

func (of *published) unpublish(pod string) {
	of.t.Helper()
	request := &csi.NodeUnpublishVolumeRequest{VolumeId: of.id, TargetPath: pod}
	if _, err := of.node.NodeUnpublishVolume(of.t.Context(), request); err != nil {
		of.t.Fatal(err)
	}
}

func (of *published) unstage() {
	of.t.Helper()
	request := &csi.NodeUnstageVolumeRequest{VolumeId: of.id, StagingTargetPath: of.staging}
	if _, err := of.node.NodeUnstageVolume(of.t.Context(), request); err != nil {
		of.t.Fatal(err)
	}
}

func (of *published) end() {
	of.t.Helper()
	of.unpublish(of.pod)
	of.unstage()
	if _, err := of.controller.DeleteVolume(of.t.Context(), &csi.DeleteVolumeRequest{VolumeId: of.id}); err != nil {
		of.t.Fatal(err)
	}
}

// A pod has its volume, and nothing else of the export; what it writes is there for the next pod.
func TestPodsShareAVolumeAndSeeNoOther(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	other := publishNew(t, endpoint, kubelet, "two", map[string]string{"server": address}, nil)
	if err := os.WriteFile(filepath.Join(of.pod, "file"), []byte("of one"), 0o644); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(other.pod); err != nil || len(names) != 0 {
		t.Errorf("another volume has %v, %v", names, err)
	}
	second := of.pod + "-second"
	if err := of.publish(second, true); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(second, "file")); err != nil || string(text) != "of one" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(second, "new"), nil, 0o644); err == nil {
		t.Error("a pod writes to a volume that it has for reading")
	}
	asked := &csi.NodeGetVolumeStatsRequest{VolumeId: of.id, VolumePath: of.pod}
	stats, err := of.node.NodeGetVolumeStats(t.Context(), asked)
	if err != nil || len(stats.GetUsage()) != 2 || stats.GetUsage()[0].GetTotal() < 32<<20 {
		t.Errorf("%v, %v", stats, err)
	}
	of.unpublish(second)
	of.end()
	other.end()
}

// Paths of volumes lead nowhere else, though pods make symbolic links, and administrators write paths.
func TestVolumesDoNotLeadElsewhere(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	if err := os.Symlink("/", filepath.Join(of.pod, "away")); err != nil {
		t.Fatal(err)
	}
	real := of.context
	for _, wrong := range []string{"/one/away", "/one/away/etc", "/none"} {
		of.context = map[string]string{"server": address, "path": wrong}
		if err := of.publish(of.pod+"-x", false); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for _, wrong := range []string{"/../etc", "relative"} {
		of.context = map[string]string{"server": address, "path": wrong}
		if err := of.publish(of.pod+"-x", false); err == nil {
			t.Errorf("%s is published", wrong)
		}
	}
	of.context = real
	if err := of.publish("/etc", false); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a target outside the kubelet's directory: %v", err)
	}
	of.end()
}

// The driver deletes what it has made, and nothing else.
func TestOnlyOwnVolumesAreDeleted(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "kept", map[string]string{"server": address, "onDelete": "retain"}, nil)
	if err := os.MkdirAll(filepath.Join(of.staging, "foreign"), 0o755); err != nil {
		t.Fatal(err)
	}
	for id, code := range map[string]codes.Code{
		address + "#/foreign": codes.FailedPrecondition,
		address + "#/":        codes.InvalidArgument,
		address + "#/none":    codes.OK,
		"nonsense":            codes.OK,
	} {
		_, err := of.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		if status.Code(err) != code {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := of.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: of.id}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"kept", "foreign"} {
		if _, err := os.Stat(filepath.Join(of.staging, name)); err != nil {
			t.Error(err)
		}
	}
	of.end()
}

// A mount whose process is killed comes back by itself, in its place.
func TestAKilledMountIsRestored(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	mounts := processes(t, dir)
	endpoint, kubelet := driver(t, dir, mounts)
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	mounts.lock.Lock()
	mounts.children[of.staging].process.Kill()
	mounts.lock.Unlock()
	// Not before its end has been noticed.
	time.Sleep(500 * time.Millisecond)
	for begun := time.Now(); !isAlive(of.staging); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("the mount does not come back")
		}
	}
	// The pod's own bind is of the old mount; the kubelet publishes again for the next pod.
	if err := of.publish(of.pod, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(of.pod, "file"), nil, 0o644); err != nil {
		t.Error(err)
	}
	of.end()
}

// The driver ends, as for a new version, and mounts go on: their processes are the mounter's.
func TestMountsOutliveTheDriver(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	socket := filepath.Join(dir, "mounter.sock")
	listener, err := listenPrivately(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go serveMounts(ctx, listener, processes(t, dir))
	endpoint, kubelet := driver(t, filepath.Join(dir), NewRemote(socket))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	file, err := os.Create(filepath.Join(of.pod, "file"))
	if err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(dir, "again")
	if err := os.Mkdir(again, 0o755); err != nil {
		t.Fatal(err)
	}
	replaced := settings{mode: "all", nodeID: "node-1", stateDir: filepath.Join(again, "state"), kubeletDir: kubelet}
	serves := server(replaced, NewRemote(socket))
	next, err := net.Listen("unix", filepath.Join(again, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go serves.Serve(next)
	defer serves.Stop()
	of.node = csi.NewNodeClient(dial(t, filepath.Join(again, "csi.sock")))
	of.controller = csi.NewControllerClient(dial(t, filepath.Join(again, "csi.sock")))
	if _, err := file.WriteString("goes on"); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if found, err := os.Stat(socket); err != nil || found.Mode().Perm() != 0o600 {
		t.Errorf("others can reach the mounter: %v, %v", found.Mode(), err)
	}
	of.end()
}

// A mounter that starts again restores the mounts that it finds recorded.
func TestAMounterRestoresItsMounts(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	target := filepath.Join(dir, "target")
	first := processes(t, dir)
	if err := first.Mount(t.Context(), MountRequest{Server: address, Target: target}); err != nil {
		t.Fatal(err)
	}
	// Everything of it dies at once, as a container does.
	first.lock.Lock()
	dying := first.children[target]
	close(dying.stop)
	dying.process.Kill()
	first.lock.Unlock()
	<-dying.ended
	second := processes(t, dir)
	second.Restore(t.Context())
	if !isAlive(target) {
		t.Error("the mount is not restored")
	}
	// One for a call that died with the first is not wanted any more.
	brief := filepath.Join(dir, "brief")
	if err := second.Mount(t.Context(), MountRequest{Server: address, Target: brief, IsBrief: true}); err != nil {
		t.Fatal(err)
	}
	second.lock.Lock()
	dying = second.children[brief]
	close(dying.stop)
	dying.process.Kill()
	second.lock.Unlock()
	<-dying.ended
	third := processes(t, dir)
	// The first was writing a key when it died, and a call is writing one now.
	dead, live := filepath.Join(third.StateDir, "dead.key.next"), filepath.Join(third.StateDir, "live.key.next")
	for _, file := range []string{dead, live} {
		if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dead, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	third.Restore(t.Context())
	if _, err := os.Stat(dead); err == nil {
		t.Error("an unfinished key is left")
	}
	if err := os.Remove(live); err != nil {
		t.Error(err)
	}
	if server, err := mountedOn(brief); err != nil || server != "" {
		t.Errorf("%s is restored, %v", server, err)
	}
	if err := second.Unmount(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(second.StateDir, "*")); len(left) != 0 {
		t.Errorf("records are left: %v", left)
	}
}

// A mount that was told to end, but is in use, is not given to the next caller: it would be gone when its user is.
func TestAMountThatIsEndingIsNotGivenAgain(t *testing.T) {
	dir := scratch(t)
	request := MountRequest{Server: serve(t, dir), Target: filepath.Join(dir, "target")}
	mounts := processes(t, dir)
	if err := mounts.Mount(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	user, err := os.Create(filepath.Join(request.Target, "file"))
	if err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := mounts.Unmount(brief, request.Target); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("it is in use, and: %v", err)
	}
	brief, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := mounts.Mount(brief, request); err == nil {
		t.Error("a mount that is about to end is given again")
	}
	user.Close()
	if err := mounts.Mount(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if !isAlive(request.Target) {
		t.Error("the mount is not there")
	}
	if err := mounts.Unmount(t.Context(), request.Target); err != nil {
		t.Fatal(err)
	}
}

// Secrets reach the mount, are private, and go with it; without them a server that wants a key refuses.
func TestKeysAreSecrets(t *testing.T) {
	dir := scratch(t)
	key := filepath.Join(dir, "key")
	if said, err := exec.Command(program(t), "key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	address := serve(t, dir, "--key", key)
	content, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	mounts := processes(t, dir)
	endpoint, kubelet := driver(t, dir, mounts)
	connection := dial(t, endpoint)
	_, err = csi.NewControllerClient(connection).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "none", VolumeCapabilities: []*csi.VolumeCapability{mountable},
		Parameters: map[string]string{"server": address},
	})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "key") {
		t.Errorf("without a key: %v", err)
	}
	secrets := map[string]string{"key": string(content)}
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, secrets)
	files, err := filepath.Glob(filepath.Join(mounts.StateDir, "*"))
	if err != nil || len(files) == 0 {
		t.Errorf("%v, %v", files, err)
	}
	for _, file := range files {
		var found unix.Stat_t
		if err := unix.Stat(file, &found); err != nil || found.Mode&0o077 != 0 {
			t.Errorf("others can read %s: %o, %v", file, found.Mode, err)
		}
	}
	of.unpublish(of.pod)
	of.unstage()
	if left, _ := filepath.Glob(filepath.Join(mounts.StateDir, "*")); len(left) != 0 {
		t.Errorf("keys are left: %v", left)
	}
}

// A server that accepts connections and says nothing costs its own volumes their time, and no others.
func TestASilentServerDelaysNoOther(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	mounts := processes(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan error, 1)
	go func() {
		server := "tcp://" + silent.Addr().String() + "/data"
		stuck <- mounts.Mount(ctx, MountRequest{Server: server, Target: filepath.Join(dir, "stuck")})
	}()
	time.Sleep(200 * time.Millisecond)
	begun := time.Now()
	target := filepath.Join(dir, "target")
	if err := mounts.Mount(t.Context(), MountRequest{Server: address, Target: target}); err != nil {
		t.Fatal(err)
	}
	if err := mounts.Unmount(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	cancel()
	if err := <-stuck; err == nil {
		t.Error("a silent server is mounted")
	}
	if left, _ := filepath.Glob(filepath.Join(mounts.StateDir, "*")); len(left) != 0 {
		t.Errorf("records are left: %v", left)
	}
}

// A call that ended in the middle, at whatever step, is repeated by Kubernetes, and leaves nothing behind.
func TestRepeatedCallsLeaveNothingBehind(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address, "directory": "/v"}, nil)
	names := func() []string {
		t.Helper()
		found, err := os.ReadDir(filepath.Join(of.staging, "v"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, one := range found {
			names = append(names, one.Name())
		}
		return names
	}
	create := func() error {
		_, err := of.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "two", VolumeCapabilities: []*csi.VolumeCapability{mountable},
			Parameters: map[string]string{"server": address, "directory": "/v"},
		})
		return err
	}
	// As an earlier call left it that died before the volume had its name.
	if err := os.Mkdir(filepath.Join(of.staging, "v", creatingPrefix+"two"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := create(); err != nil {
			t.Fatal(err)
		}
		if found := names(); len(found) != 2 || found[1] != "two" {
			t.Errorf("%v", found)
		}
	}
	// And one that died while it deleted.
	doomed := filepath.Join(of.staging, "v", deletingPrefix+"two", "inside")
	if err := os.MkdirAll(doomed, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		request := &csi.DeleteVolumeRequest{VolumeId: address + "#/v/two"}
		if _, err := of.controller.DeleteVolume(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if found := names(); len(found) != 1 {
			t.Errorf("%v", found)
		}
	}
	of.end()
}

// A pod that may write where volumes are made leads the driver nowhere.
func TestVolumesAreNotMadeElsewhere(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	outside := filepath.Join(dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(of.staging, "away")); err != nil {
		t.Fatal(err)
	}
	_, err := of.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "two", VolumeCapabilities: []*csi.VolumeCapability{mountable},
		Parameters: map[string]string{"server": address, "directory": "/away"},
	})
	if err == nil {
		t.Error("a volume is made through a link")
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
	of.end()
}

// A server that is away when a mounter starts costs its mounts time, and no more: nobody asks for them again.
func TestMountsComeBackWithTheirServer(t *testing.T) {
	dir := scratch(t)
	pool, address := filepath.Join(dir, "pool"), freeAddress(t)
	if said, err := exec.Command(program(t), "mkfs", pool, "--size", "64M").CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, said)
	}
	server := startServer(t, pool, address)
	target := filepath.Join(dir, "target")
	first := processes(t, dir)
	if err := first.Mount(t.Context(), MountRequest{Server: address + "/data", Target: target}); err != nil {
		t.Fatal(err)
	}
	// The node goes down, and the server.
	first.End()
	server.Process.Signal(syscall.SIGTERM)
	server.Wait()
	second := processes(t, dir)
	second.Restore(t.Context())
	if isAlive(target) {
		t.Fatal("it is mounted without a server")
	}
	startServer(t, pool, address)
	for begun := time.Now(); !isAlive(target); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("the mount does not come back")
		}
	}
	if err := second.Unmount(t.Context(), target); err != nil {
		t.Fatal(err)
	}
}

// A volume for reading is never left writable, though binding it takes two steps.
func TestPublishingAgainKeepsReadOnly(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	// As the first of the two steps leaves it.
	if err := of.publish(of.pod, true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(of.pod, "new"), nil, 0o644); err == nil {
		t.Error("it is writable")
	}
	if err := of.publish(of.pod, false); status.Code(err) != codes.AlreadyExists {
		t.Errorf("published for writing as well: %v", err)
	}
	of.end()
}

// Pods have namespaces of processes of their own, and the mounter that of the node: locks need to see their owners.
func TestPodsLockFiles(t *testing.T) {
	dir := scratch(t)
	address := serve(t, dir)
	endpoint, kubelet := driver(t, dir, processes(t, dir))
	of := publishNew(t, endpoint, kubelet, "one", map[string]string{"server": address}, nil)
	lock := exec.Command("unshare", "--pid", "--fork", "flock", filepath.Join(of.pod, "file"), "true")
	if said, err := lock.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	of.end()
}
