// Command ferrite-csi gives volumes on Ferrite's servers to Kubernetes, by the Container Storage Interface.
//
// A volume is a subtree of an export. It runs as
//
//   - controller, which makes and deletes volumes;
//   - node, on each node, which mounts them for pods;
//   - mounter, on each node, whose children are the mounts, so that a new version of the node's part ends none;
//   - all, for tests: controller and node in one process, with mounts of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// busy refuses a second call for something while one is under way. Callers repeat it later.
type busy struct {
	lock  sync.Mutex
	names map[string]bool
}

func (b *busy) take(name string) (release func(), err error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.names[name] {
		return nil, status.Errorf(codes.Aborted, "another call for %s is under way", name)
	}
	if b.names == nil {
		b.names = make(map[string]bool)
	}
	b.names[name] = true
	return func() {
		b.lock.Lock()
		defer b.lock.Unlock()
		delete(b.names, name)
	}, nil
}

// internal is an error of the system. One that has a code already keeps it.
func internal(err error) error {
	if err == nil {
		return nil
	}
	if _, has := status.FromError(err); has {
		return err
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return status.Errorf(codes.PermissionDenied, "%v; the export must not squash root", err)
	case errors.Is(err, syscall.ENOSPC):
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// logged writes failures to the log, without requests, which may hold keys; a panic fails its call alone.
func logged(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (reply any, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = status.Errorf(codes.Internal, "a mistake of the driver: %v", broken)
			slog.Error("panic", "call", info.FullMethod, "cause", broken, "stack", string(debug.Stack()))
		} else if err != nil {
			slog.Warn("refused", "call", info.FullMethod, "error", err)
		}
	}()
	return next(ctx, request)
}

type settings struct {
	mode, endpoint, nodeID, mounterSocket, stateDir, program, kubeletDir string
}

func parse(args []string) (settings, error) {
	var of settings
	flags := flag.NewFlagSet("ferrite-csi", flag.ContinueOnError)
	hostName, _ := os.Hostname()
	flags.StringVar(&of.mode, "mode", "all", "controller, node, mounter, or all")
	flags.StringVar(&of.endpoint, "endpoint", "unix:///csi/csi.sock", "the socket for Kubernetes")
	flags.StringVar(&of.nodeID, "node-id", hostName, "the name of this node")
	flags.StringVar(&of.mounterSocket, "mounter", "", "the socket of the mounter; without it, this process mounts")
	flags.StringVar(&of.stateDir, "state", "/run/ferrite-csi", "a directory for records of mounts, in memory")
	flags.StringVar(&of.program, "ferrite", "ferrite", "the program ferrite")
	flags.StringVar(&of.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the directory of the kubelet")
	version := flags.Bool("version", false, "print the version")
	if err := flags.Parse(args); err != nil {
		return of, err
	}
	if *version {
		fmt.Println("ferrite-csi", Version)
		return of, flag.ErrHelp
	}
	if flags.NArg() > 0 {
		return of, fmt.Errorf("%q is no option", flags.Arg(0))
	}
	switch of.mode {
	case "controller", "node", "mounter", "all":
	default:
		return of, fmt.Errorf("--mode %s: it is controller, node, mounter or all", of.mode)
	}
	if of.mode == "mounter" && of.mounterSocket == "" {
		return of, errors.New("--mode mounter needs --mounter, the socket to listen on")
	}
	of.kubeletDir = filepath.Clean(of.kubeletDir)
	return of, nil
}

// server is the driver's half of CSI.
func server(of settings, mounter Mounter) *grpc.Server {
	made := grpc.NewServer(grpc.UnaryInterceptor(logged))
	isController, isNode := of.mode != "node", of.mode != "controller"
	csi.RegisterIdentityServer(made, &identity{isController: isController, isReady: mounter.Check})
	if isController {
		csi.RegisterControllerServer(made, &controller{mounter: mounter, workDir: filepath.Join(of.stateDir, "work")})
	}
	if isNode {
		csi.RegisterNodeServer(made, &node{id: of.nodeID, mounter: mounter, kubeletDir: of.kubeletDir})
	}
	return made
}

func run(ctx context.Context, of settings) error {
	mounts := &Processes{Program: of.program, StateDir: filepath.Join(of.stateDir, "mounts")}
	if of.mode == "mounter" {
		listener, err := listenPrivately(of.mounterSocket)
		if err != nil {
			return err
		}
		go mounts.Restore(ctx)
		err = serveMounts(ctx, listener, mounts)
		mounts.End()
		return err
	}
	var mounter Mounter = mounts
	if of.mounterSocket != "" {
		mounter = NewRemote(of.mounterSocket)
	}
	path, isSocket := strings.CutPrefix(of.endpoint, "unix://")
	if !isSocket {
		return fmt.Errorf("--endpoint %s: it begins with unix://", of.endpoint)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if of.mounterSocket == "" {
		go mounts.Restore(ctx)
	}
	serves := server(of, mounter)
	go func() {
		<-ctx.Done()
		serves.GracefulStop()
	}()
	return serves.Serve(listener)
}

func main() {
	of, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer cancel()
		err = run(ctx, of)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "ferrite-csi: %v\n", err)
		os.Exit(1)
	}
}
