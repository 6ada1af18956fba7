package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MountRequest asks for an export on a directory.
type MountRequest struct {
	Server  string   `json:"server"`
	Target  string   `json:"target"`
	Options []string `json:"options,omitempty"`
	// Key is the content of the server's key file; empty if it has none.
	Key string `json:"key,omitempty"`
	// IsBrief says that the mount serves one call, so nobody wants it back after the end of its mounter.
	IsBrief bool `json:"is_brief,omitempty"`
}

// Mounter mounts exports. Both calls may be repeated.
type Mounter interface {
	Mount(ctx context.Context, request MountRequest) error
	Unmount(ctx context.Context, target string) error
	// Check says why it cannot work.
	Check() error
}

const (
	// How long a server may take until its export is mounted, and how often that is looked at.
	mountTimeout  = 30 * time.Second
	mountInterval = 20 * time.Millisecond
	// A mount whose process ends comes back after this long, and after up to restartMax if that repeats.
	restartMin = time.Second
	restartMax = time.Minute
	// How long a mount may be silent until nobody waits for its answer.
	aliveTimeout = 5 * time.Second
	// How long an unmount waits for the process of the mount, and how often it looks whether that answers.
	endTimeout  = 50 * time.Second
	endInterval = 5 * time.Second
)

// Processes mounts exports by processes of `ferrite mount` that are its children. It records each mount before it makes
// it, restarts processes that die, and at its own start restores the mounts that it finds recorded.
type Processes struct {
	// Program is `ferrite`.
	Program string
	// StateDir has a file for each mount. It holds keys, and should be in memory, as /run is.
	StateDir string

	// One call for a target at a time, and none waits for another's: a server may take long to answer.
	busy     busy
	lock     sync.Mutex
	children map[string]*child
}

// child is the process of a mount, and its successors.
type child struct {
	stopOnce sync.Once
	stop     chan struct{}
	ended    chan struct{}
	// Under the lock of the mounter: the request, which may get another key, and the last process.
	request MountRequest
	process *os.Process
}

// isEnding says whether it was told to end, in vain so far.
func (c *child) isEnding() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (m *Processes) childOf(target string) *child {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.children[target]
}

func (m *Processes) keep(of *child) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.children == nil {
		m.children = make(map[string]*child)
	}
	m.children[of.request.Target] = of
}

// signal reaches the last process, if there was one.
func (m *Processes) signal(of *child, signal os.Signal) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if of.process != nil {
		of.process.Signal(signal)
	}
}

func (m *Processes) requestOf(of *child) MountRequest {
	m.lock.Lock()
	defer m.lock.Unlock()
	return of.request
}

func (m *Processes) setRequest(of *child, request MountRequest) {
	m.lock.Lock()
	defer m.lock.Unlock()
	of.request = request
}

func (m *Processes) stateFile(target, suffix string) string {
	sum := sha256.Sum256([]byte(target))
	return filepath.Join(m.StateDir, hex.EncodeToString(sum[:16])+suffix)
}

// Check says why it cannot mount.
func (m *Processes) Check() error {
	_, err := exec.LookPath(m.Program)
	return err
}

const (
	// unfinishedSuffix is that of a file that is being written.
	unfinishedSuffix = ".next"
	// unfinishedAge is far more than a write takes.
	unfinishedAge = time.Minute
)

// writeFile writes a file of secrets in one step.
func writeFile(path string, content []byte) error {
	next := path + unfinishedSuffix
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// Mount returns once the export answers at the target.
func (m *Processes) Mount(ctx context.Context, request MountRequest) error {
	release, err := m.busy.take(request.Target)
	if err != nil {
		return err
	}
	defer release()
	if known := m.childOf(request.Target); known != nil {
		had := m.requestOf(known)
		if had.Server != request.Server || !slices.Equal(had.Options, request.Options) {
			return status.Errorf(codes.AlreadyExists, "%s has %s, with %v", request.Target, had.Server, had.Options)
		}
		// One that was told to end may answer as long as it is in use, and then be gone.
		if !known.isEnding() && isAlive(request.Target) {
			// A new key is for the next process.
			m.setRequest(known, request)
			return m.write(request)
		}
		if err := m.end(ctx, known); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.StateDir, 0o700); err != nil {
		return internal(err)
	}
	// A dead mount's directory cannot be looked at, and is there.
	err = os.MkdirAll(request.Target, 0o750)
	if err != nil && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, os.ErrExist) {
		return internal(err)
	}
	if err := m.write(request); err != nil {
		return err
	}
	if err := m.start(ctx, request); err != nil {
		m.forget(request.Target)
		return err
	}
	return nil
}

// write records a mount.
func (m *Processes) write(request MountRequest) error {
	text, err := json.Marshal(request)
	if err != nil {
		return internal(err)
	}
	return internal(writeFile(m.stateFile(request.Target, ".json"), text))
}

func (m *Processes) forget(target string) {
	os.Remove(m.stateFile(target, ".json"))
	os.Remove(m.stateFile(target, ".key"))
}

// command is one process, which serves the mount until it ends.
func (m *Processes) command(request MountRequest) (*exec.Cmd, *tail, error) {
	options := append([]string{}, request.Options...)
	if request.Key != "" {
		key := m.stateFile(request.Target, ".key")
		if err := writeFile(key, []byte(request.Key)); err != nil {
			return nil, nil, err
		}
		options = append(options, "key="+key)
	}
	args := []string{"mount", "-f"}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	// Both begin with / or a scheme, so neither is taken for an option.
	command := exec.Command(m.Program, append(args, request.Server, request.Target)...)
	said := &tail{}
	command.Stdout, command.Stderr = said, said
	// A process that it leaves behind must not delay its end.
	command.WaitDelay = 2 * time.Second
	return command, said, nil
}

// start makes the mount, and has its process watched.
func (m *Processes) start(ctx context.Context, request MountRequest) error {
	command, said, err := m.command(request)
	if err != nil {
		return internal(err)
	}
	if err := command.Start(); err != nil {
		return internal(err)
	}
	ended := make(chan struct{})
	go func() {
		command.Wait()
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	ticker := time.NewTicker(mountInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return status.Errorf(codes.Unavailable, "ferrite mount %s: %s", request.Server, said.text())
		case <-ctx.Done():
			command.Process.Kill()
			<-ended
			unix.Unmount(request.Target, unix.MNT_DETACH)
			return status.Errorf(codes.DeadlineExceeded, "%s is not mounted in time: %s", request.Server, said.text())
		case <-ticker.C:
		}
		if server, err := mountedOn(request.Target); err == nil && server != "" && isAlive(request.Target) {
			break
		}
	}
	watched := &child{request: request, stop: make(chan struct{}), ended: make(chan struct{}), process: command.Process}
	m.keep(watched)
	go m.watch(watched, ended, said)
	return nil
}

// watch starts a new process when one ends that should not. It takes the mount over.
func (m *Processes) watch(watched *child, ended chan struct{}, said *tail) {
	defer close(watched.ended)
	wait := restartMin
	for {
		begun := time.Now()
		<-ended
		select {
		case <-watched.stop:
			return
		default:
		}
		if time.Since(begun) > restartMax {
			wait = restartMin
		}
		request := m.requestOf(watched)
		slog.Error("the process of a mount has ended and is started again", "target", request.Target,
			"server", request.Server, "after", wait, "said", said.text())
		select {
		case <-watched.stop:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMax)
		command, next, err := m.command(m.requestOf(watched))
		if err == nil {
			err = command.Start()
		}
		said, ended = &tail{}, make(chan struct{})
		if err != nil {
			fmt.Fprint(said, err)
			close(ended)
			continue
		}
		said = next
		m.lock.Lock()
		watched.process = command.Process
		m.lock.Unlock()
		// A new variable: the next round has another.
		over := ended
		go func() {
			command.Wait()
			close(over)
		}()
	}
}

// end stops a child. The process unmounts what nobody uses, and writes back what it has, however long that takes: it is
// killed only if it does not answer.
func (m *Processes) end(ctx context.Context, of *child) error {
	of.stopOnce.Do(func() { close(of.stop) })
	target := m.requestOf(of).Target
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for isOver := false; !isOver; {
		// Again, if another was being started when the first was told to end.
		m.signal(of, syscall.SIGTERM)
		select {
		case <-of.ended:
			isOver = true
		case <-ctx.Done():
			return status.Errorf(codes.DeadlineExceeded, "%s is in use, or still writes to its server", target)
		case <-time.After(endInterval):
			if !isAlive(target) {
				m.signal(of, syscall.SIGKILL)
			}
		}
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	delete(m.children, target)
	return nil
}

// End ends all processes, as for a shutdown of the node. Their records stay.
func (m *Processes) End() {
	m.lock.Lock()
	children := slices.Collect(maps.Values(m.children))
	m.lock.Unlock()
	var all sync.WaitGroup
	for _, of := range children {
		all.Go(func() {
			if err := m.end(context.Background(), of); err != nil {
				slog.Error("a mount does not end", "error", err)
			}
		})
	}
	all.Wait()
}

// Unmount returns once nothing is mounted on the target and its process has ended.
func (m *Processes) Unmount(ctx context.Context, target string) error {
	release, err := m.busy.take(target)
	if err != nil {
		return err
	}
	defer release()
	if known := m.childOf(target); known != nil {
		if err := m.end(ctx, known); err != nil {
			return err
		}
	}
	for {
		server, err := mountedOn(target)
		if err != nil {
			return internal(err)
		}
		if server == "" {
			break
		}
		// In use, or its process is another program's.
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return internal(fmt.Errorf("unmount %s: %w", target, err))
		}
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	m.forget(target)
	return nil
}

// Restore makes recorded mounts again whose processes ended with the one that made them; all at once, since some
// servers may not answer.
func (m *Processes) Restore(ctx context.Context) {
	// Files that a mounter was writing when it was killed, keys among them; not those that calls are writing now.
	unfinished, _ := filepath.Glob(filepath.Join(m.StateDir, "*"+unfinishedSuffix))
	for _, file := range unfinished {
		if found, err := os.Stat(file); err == nil && time.Since(found.ModTime()) > unfinishedAge {
			os.Remove(file)
		}
	}
	files, err := filepath.Glob(filepath.Join(m.StateDir, "*.json"))
	if err != nil {
		return
	}
	var all sync.WaitGroup
	for _, file := range files {
		var request MountRequest
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &request)
		}
		if err != nil || file != m.stateFile(request.Target, ".json") {
			slog.Error("a recorded mount is unreadable", "file", file, "error", err)
			continue
		}
		all.Go(func() { m.restore(ctx, request) })
	}
	all.Wait()
}

func (m *Processes) restore(ctx context.Context, request MountRequest) {
	release, err := m.busy.take(request.Target)
	if err != nil {
		return
	}
	defer release()
	if _, err := os.Stat(m.stateFile(request.Target, ".json")); err != nil {
		// It was unmounted meanwhile.
		return
	}
	if request.IsBrief {
		if err := unix.Unmount(request.Target, unix.MNT_DETACH); err == nil || errors.Is(err, unix.EINVAL) {
			m.forget(request.Target)
			os.Remove(request.Target)
		}
		return
	}
	if m.childOf(request.Target) != nil || isAlive(request.Target) {
		return
	}
	if err := m.start(ctx, request); err != nil {
		// Nobody asks for it again, since it was mounted. So it is tried again as if its process had ended.
		slog.Error("a mount is not restored yet", "target", request.Target, "error", err)
		watched := &child{request: request, stop: make(chan struct{}), ended: make(chan struct{})}
		m.keep(watched)
		ended, said := make(chan struct{}), &tail{}
		fmt.Fprint(said, err)
		close(ended)
		go m.watch(watched, ended, said)
	}
}

// tail keeps the end of what a process says.
type tail struct {
	lock sync.Mutex
	kept []byte
}

const tailBytes = 2048

func (t *tail) Write(said []byte) (int, error) {
	os.Stderr.Write(said)
	t.lock.Lock()
	defer t.lock.Unlock()
	t.kept = append(t.kept, said...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append([]byte{}, t.kept[over:]...)
	}
	return len(said), nil
}

func (t *tail) text() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return string(bytes.TrimSpace(t.kept))
}

// isAlive says whether the process of a mount answers. A process whose server is away does, if late, so that one that
// says nothing for a while counts as alive; its thread here ends with it.
func isAlive(target string) bool {
	server, err := mountedOn(target)
	if err != nil || server == "" {
		return false
	}
	answered := make(chan error, 1)
	go func() {
		// The kernel answers a stat from its cache, also for a process that is dead.
		var space unix.Statfs_t
		answered <- unix.Statfs(target, &space)
	}()
	select {
	case err := <-answered:
		return err == nil
	case <-time.After(aliveTimeout):
		return true
	}
}

// mount is a line of the kernel's table of mounts.
type mount struct {
	// device names the file system, root the directory of it that is mounted, at target.
	device, root, target, server string
}

// mounts are those of Ferrite, older ones first. Reading them touches no mount, which may not answer.
func mounts() ([]mount, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []mount
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		separator := slices.Index(fields, "-")
		if separator > 4 && len(fields) > separator+2 && fields[separator+1] == "fuse.ferrite" {
			found = append(found, mount{
				device: fields[2],
				root:   unescaped(fields[3]),
				target: unescaped(fields[4]),
				server: unescaped(fields[separator+2]),
			})
		}
	}
	return found, nil
}

// mountedOn is the export that is mounted on a directory; empty if none is.
func mountedOn(target string) (string, error) {
	found, err := mounts()
	if err != nil {
		return "", err
	}
	for _, one := range slices.Backward(found) {
		if one.target == target {
			return one.server, nil
		}
	}
	return "", nil
}

// unescaped reverts how the kernel writes blanks and backslashes.
func unescaped(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(field)
}
