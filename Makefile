# Ferrite. `make demo` and `make test` set up everything they need on a fresh Debian machine.
#
# The command line is built with the features `nvme`, for pools on devices, and `fabric` and `rdma`, which are on by
# default. The library needs none of them. The lab, a program for developers, has LevelDB as well.
#
# Compiled dependencies live outside the checkout, so that a fresh clone builds fast.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/ferrite/target

PREFIX ?= /usr/local
VERSION = $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
FERRITE = $(CARGO_TARGET_DIR)/release/ferrite
LAB = $(CARGO_TARGET_DIR)/release/ferrite-lab
UNDER_TEST = FERRITE_C_LIBRARY=$(CARGO_TARGET_DIR)/debug/libferrite_c.a FERRITE_C_LIBS="$(ROCKSDB_LIBS)" FERRITE_BIN=$(CARGO_TARGET_DIR)/debug/ferrite
# All features that a test needs: of the programs everywhere, and of all crates here. Not every machine
# can have librados; without it, its tests are left out, aloud. The shell looks for it, not make, which would do so before a rule has installed it.
HAS_RADOS = [ -e /usr/include/rados/librados.h ]
FEATURES = ferrite-cli/nvme,ferrite-lab/leveldb,ferrite-lab/nvme
ALL_FEATURES = $(FEATURES)$$(! $(HAS_RADOS) || echo ,ferrite-cli/rados,ferrite-lab/rados,ferrite-rados/librados,ferrite-nvme/rados)
SAY_SKIPPED = @$(HAS_RADOS) || echo "SKIPPED: tests of content in Ceph need the Debian package librados-dev"

.PHONY: demo test check lint unit soak fuzz race pmem rdma bench explain build install install-files install-c install-c-files build-c build-python install-python install-python-files fio-engine packages csi clean help

help:
	@echo "make demo      a pool, a mount, real programs on it, a table of latencies (5 minutes)"
	@echo "make test      all tests, formatting, lints (40 minutes)"
	@echo "make check     formatting, lints and the quick suites (4 minutes)"
	@echo "make soak      the long versions of the random and crash tests, and make fuzz"
	@echo "make fuzz      all fuzz targets, a minute each (needs a nightly toolchain and cargo-fuzz)"
	@echo "make race      threaded tests under ThreadSanitizer (needs a nightly toolchain with rust-src)"
	@echo "make pmem      tests, programs and crash rounds on persistent memory, in an emulated guest (30 minutes; needs root once)"
	@echo "make rdma      verbs programs and fabric:// over RDMA in software (rdma_rxe), in an emulated guest"
	@echo "               (40 minutes; needs root once; FERRITE_RDMA_PHASES=stock: verbs programs alone)"
	@echo "make bench     ferrite-lab bench, all groups"
	@echo "make explain   what single operations spend their time on, by a program with probes"
	@echo "make packages  packages for Debian, and an RPM if rpmbuild is installed, in dist/packages"
	@echo "make fio-engine an engine of fio, to measure pools and servers in its process (docs/benchmarks.md)"
	@echo "make csi       the driver for Kubernetes, in dist/packages (needs Go; docs/kubernetes.md)"
	@echo "make install-c libferrite for programs in C, its header, a file for pkg-config; to $(PREFIX)"
	@echo "make install-python the Python package, for the Python of the system"
	@echo "make install   ferrite, its helpers for mkfs, mount and fsck, man pages, completions, a file(1) description, units of systemd; to $(PREFIX)"

build:
	@scripts/setup-debian.sh build
	FERRITE_COMMIT=$$(git rev-parse --short=12 HEAD 2>/dev/null) cargo build --release -p ferrite-cli --features nvme

demo: build
	@$(FERRITE) demo

test: lint unit

# The quick suites, on one mapping and with programs that are not optimized.
check: lint
	$(SAY_SKIPPED)
	scripts/run-tests.py --short --workspace --features $(ALL_FEATURES)

lint:
	@scripts/setup-debian.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features $(ALL_FEATURES) -- -D warnings
	# Without LevelDB, RocksDB, libfabric and their compilers, as users of the library build it.
	cargo clippy -p ferrite-cli -p ferrite-lab --no-default-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	@crates=$$(cargo tree -p ferrite -e normal --prefix none --no-dedupe | sort -u | wc -l); \
		[ "$$crates" -le 42 ] || { echo "the library has grown to $$crates crates; 42 are enough"; exit 1; }

# The programs under test are those that cargo builds for the tests, with the assertions and the checks of lock order
# that a release leaves out; the crates that compute most are optimized there, too.
unit:
	$(SAY_SKIPPED)
	# The library for C and the extension for Python, without what other crates would add to their features.
	cargo build -p ferrite-c -p ferrite-python --features ferrite-c/postgres,ferrite-python/postgres
	$(UNDER_TEST) scripts/run-tests.py --workspace --features $(ALL_FEATURES)
	# The Python package, which pytest tests.
	$(UNDER_TEST) scripts/test-python.sh
	# The driver for Kubernetes, with the community's test of drivers.
	$(UNDER_TEST) scripts/test-csi.sh
	# Three builds with other features, as few as possible, since each compiles the engine anew.
	# Models under many schedules: free maps, bounds and cursors; guards, revocation and combined appends of bound files.
	scripts/run-tests.py --only ferrite-map/ferrite_map=models --only ferrite-mr/ferrite_mr=models \
		-p ferrite-map -p ferrite-mr --features ferrite-map/shuttle,ferrite-mr/shuttle --lib
	# Probes in the engine: spans add up, and what threads share is bounded.
	scripts/run-tests.py --only ferrite-pm/profile --only ferrite-fs/spans --only ferrite-fs/shared_lines \
		-p ferrite-pm -p ferrite-fs --features ferrite-fs/spans --test profile --test spans --test shared_lines
	# The crash explorer and the crash tests on engines with seeded bugs, whose caches are smaller: they must find each one.
	scripts/run-tests.py --only ferrite-crash/seeded_bugs --only ferrite-crash/remote=mistakes \
		--only ferrite-fs/regions_crash --only ferrite-blob/crash --only ferrite-nvme/crash \
		--only ferrite-nvme/content_faults=mistakes --only ferrite-nvme/slice_mistakes=mistakes \
		--only ferrite-meta/owned=mistakes --only ferrite-wal/crash \
		-p ferrite-crash -p ferrite-fs -p ferrite-blob -p ferrite-nvme -p ferrite-meta -p ferrite-wal \
		--features ferrite-crash/seeded-bugs,ferrite-blob/seeded-bugs,ferrite-nvme/seeded-bugs,ferrite-nvme/s3,ferrite-meta/seeded-bugs,ferrite-wal/seeded-bugs \
		--test seeded_bugs --test remote --test regions_crash --test crash --test content_faults --test slice_mistakes --test owned

# Long tests that go through all mappings by themselves.
ON_ALL_MAPPINGS := posix_rules random_operations concurrent_histories suites_with_data_checksums long_loops_on_64_mib \
	long_loops_on_1_gib long_loops_on_8_gib two_days_of_a_file_server repair::

soak: build
	# A run of an hour should report all failures, not only the first one.
	FERRITE_BIN=$(FERRITE) FERRITE_SOAK=1 cargo test --release --workspace --no-fail-fast --features $(ALL_FEATURES) -- --nocapture
	# Both ways, if the kernel offers rings: by default mounts of memory have them, and mounts of devices and servers not.
	for way in off on; do \
		FERRITE_RINGS=$$way FERRITE_BIN=$(FERRITE) cargo test --release -p ferrite-cli --features nvme \
			--test it -- real_programs:: crash_kill:: nvme:: serve:: leased_mounts:: || exit 1; done
	# With the largest of the libraries that use the Python package, and checkpoints of 1 GiB.
	FERRITE_SOAK=1 FERRITE_PYTHON_WHEELS=torch==2.15.0 FERRITE_BIN=$(FERRITE) scripts/test-python.sh
	# Every seeded bug and every forgotten fence, on every mapping it applies to.
	FERRITE_SOAK=1 cargo test --release -p ferrite-crash --features seeded-bugs --test seeded_bugs -- --nocapture
	cargo test --release -p ferrite-crash --features seeded-bugs --test remote mistakes -- --nocapture
	# `ferrite-lab run all --quick` must take less than 10 minutes; alone, because other tests would take its cores.
	cargo test --release -p ferrite-lab --features leveldb,nvme --test quick -- --ignored --nocapture
	# Everything else on every mapping, real programs included; as many kills as on the default mapping.
	for mapping in cuckoo radix extent leaf; do \
		FERRITE_MAPPING=$$mapping FERRITE_BIN=$(FERRITE) cargo test --release -p ferrite-fs -p ferrite -p ferrite-cli --features ferrite-cli/nvme \
			-- $(addprefix --skip ,$(ON_ALL_MAPPINGS)) || exit 1; \
		FERRITE_SOAK=1 FERRITE_MAPPING=$$mapping FERRITE_BIN=$(FERRITE) cargo test --release -p ferrite-cli --features nvme --test it -- crash_kill:: || exit 1; done
	$(MAKE) fuzz

# Seconds for each target.
FUZZ_SECONDS ?= 60

# `make test` replays the corpora; this looks for new inputs. New corpus entries stay out of the checkout. An input that
# breaks something is left in fuzz/artifacts, and belongs in the corpus once the bug is fixed.
fuzz:
	@if ! cargo +nightly fuzz --version >/dev/null 2>&1; then \
		echo "SKIPPED: fuzzing needs a nightly toolchain and cargo-fuzz (rustup toolchain install nightly; cargo install cargo-fuzz)"; \
	else for target in pool_image journal_replay directory_block page_log fsck_repair wire_message server_session client_replies handshake roce_packet; do \
		learned=$(CARGO_TARGET_DIR)/fuzz-corpus/$$target; mkdir -p $$learned; \
		(cd fuzz && ASAN_OPTIONS=detect_leaks=0 cargo +nightly fuzz run $$target $$learned corpus/$$target -- \
			-dict=ferrite.dict -max_len=768 -max_total_time=$(FUZZ_SECONDS)) || exit 1; done; fi

# ThreadSanitizer sees only part of the copies that race with writers; its reports are still worth reading.
race:
	@if ! rustup component list --toolchain nightly 2>/dev/null | grep -q 'rust-src (installed)'; then \
		echo "SKIPPED: ThreadSanitizer needs a nightly toolchain (rustup toolchain install nightly --component rust-src)"; \
	else \
		RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p ferrite-map bitmap && \
		RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p ferrite-fs --test it pagelog::; fi

# The tests that need devices, built for the guest. Where it cannot run, it is skipped with a message, which is not a
# failure; docs/pmem.md has the last result.
pmem: build
	@scripts/setup-debian.sh pmem
	tests=$$(cargo test --no-run --message-format=json -p ferrite-pm -p ferrite-cli --lib --test devices | \
		grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | grep -E '/(ferrite_pm|devices)-[0-9a-f]*$$') && \
	scripts/pmem/run.sh $(FERRITE) $$tests

# fabric:// over libfabric's `verbs`, in a guest that has RDMA in software. What was said of `pmem` holds here, too;
# docs/rdma.md has the last result.
rdma:
	-@scripts/setup-debian.sh rdma
	scripts/rdma/run.sh

bench:
	@scripts/setup-debian.sh build
	cargo build --release -p ferrite-cli -p ferrite-lab --features $(FEATURES)
	$(LAB) bench

# In a folder of its own, so that the program without probes stays.
explain:
	@scripts/setup-debian.sh build
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/spans cargo build --release -p ferrite-lab --no-default-features --features spans
	@$(CARGO_TARGET_DIR)/spans/release/ferrite-lab bench core --explain

install: build install-files
	@# mount(8) and fsck(8) look for their helpers in /sbin only.
	if [ -z "$(DESTDIR)" ] && [ -w /sbin ]; then \
		for tool in mkfs mount mount.fuse fsck; do ln -sf $(PREFIX)/bin/ferrite /sbin/$$tool.ferrite; done; fi

# The files of what is built, for the rule above and for packages.
install-files:
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin
	install -m 755 $(FERRITE) $(DESTDIR)$(PREFIX)/bin/ferrite
	for tool in mkfs mount mount.fuse fsck; do ln -sf ../bin/ferrite $(DESTDIR)$(PREFIX)/sbin/$$tool.ferrite; done
	@# Man pages and completions come from the same source as --help.
	$(FERRITE) manual $(CARGO_TARGET_DIR)/manual
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	install -m 644 $(CARGO_TARGET_DIR)/manual/man/man1/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	for tool in mkfs mount fsck; do echo ".so man1/ferrite-$$tool.1" > $(DESTDIR)$(PREFIX)/share/man/man8/$$tool.ferrite.8; done
	echo ".so man1/ferrite-mount.1" > $(DESTDIR)$(PREFIX)/share/man/man8/mount.fuse.ferrite.8
	install -m 644 $(CARGO_TARGET_DIR)/manual/completions/ferrite.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ferrite
	install -m 644 $(CARGO_TARGET_DIR)/manual/completions/_ferrite $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ferrite
	install -m 644 $(CARGO_TARGET_DIR)/manual/completions/ferrite.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -d $(DESTDIR)$(PREFIX)/share/ferrite
	install -m 644 scripts/ferrite.magic $(DESTDIR)$(PREFIX)/share/ferrite/ferrite.magic
	install -m 644 dist/server.toml $(DESTDIR)$(PREFIX)/share/ferrite/server.toml
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in ferrite.service ferrite-snapshot@.service ferrite-snapshot@.timer; do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' dist/systemd/$$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit && \
		chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done

# libferrite for programs in C: pools and servers. C_FEATURES=nvme adds pools on devices, and postgres those with
# metadata in PostgreSQL.
C_FEATURES ?=
ROCKSDB_LIBS = -lrocksdb -lstdc++
C_LIBS = $(if $(C_FEATURES),$(ROCKSDB_LIBS))
C_LIBRARY = $(CARGO_TARGET_DIR)/release/libferrite_c.a
LIBDIR ?= $(PREFIX)/lib
build-c:
	@scripts/setup-debian.sh build
	cargo build --release -p ferrite-c --features "$(C_FEATURES)"

install-c: build-c install-c-files
	[ -n "$(DESTDIR)" ] || ldconfig

install-c-files:
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include
	FERRITE_C_LIBS="$${FERRITE_C_LIBS-$(C_LIBS)}" scripts/c-library.sh $(C_LIBRARY) $(DESTDIR)$(LIBDIR)
	install -m 644 $(C_LIBRARY) $(DESTDIR)$(LIBDIR)/libferrite.a
	install -m 644 crates/ferrite-c/include/ferrite.h $(DESTDIR)$(PREFIX)/include/ferrite.h
	scripts/c-manual.py $(VERSION) $(CARGO_TARGET_DIR)/manual/man/man3
	install -d $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 $(CARGO_TARGET_DIR)/manual/man/man3/*.3 $(DESTDIR)$(PREFIX)/share/man/man3
	sed "s|@PREFIX@|$(PREFIX)|; s|@LIBS@|$${FERRITE_C_LIBS-$(C_LIBS)}|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|" crates/ferrite-c/ferrite.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ferrite.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/ferrite.pc

# The Python package, for the Python of the system. PYTHON_FEATURES are as C_FEATURES.
PYTHON_FEATURES ?=
PYTHON_PACKAGES ?= $(PREFIX)/lib/python3/dist-packages
PYTHON_EXTENSION = $(CARGO_TARGET_DIR)/release/lib_ferrite.so
build-python:
	@scripts/setup-debian.sh build
	cargo build --release -p ferrite-python --features "$(PYTHON_FEATURES)"

install-python: build-python install-python-files

# What pip would install of the wheel.
PYTHON_INFO = $(DESTDIR)$(PYTHON_PACKAGES)/ferrite-$(VERSION).dist-info
install-python-files:
	install -d $(DESTDIR)$(PYTHON_PACKAGES)/ferrite $(PYTHON_INFO)
	install -m 644 crates/ferrite-python/python/ferrite/*.py crates/ferrite-python/python/ferrite/*.pyi \
		crates/ferrite-python/python/ferrite/py.typed $(DESTDIR)$(PYTHON_PACKAGES)/ferrite
	install -m 644 $(PYTHON_EXTENSION) $(DESTDIR)$(PYTHON_PACKAGES)/ferrite/_ferrite.abi3.so
	printf 'Metadata-Version: 2.1\nName: ferrite\nVersion: %s\nRequires-Python: >=3.11\n' $(VERSION) > $(PYTHON_INFO)/METADATA
	printf '[fsspec.specs]\nferrite = ferrite.fsspec:FerriteFileSystem\n' > $(PYTHON_INFO)/entry_points.txt
	echo ferrite > $(PYTHON_INFO)/top_level.txt
	chmod 644 $(PYTHON_INFO)/*

# In the folder of release programs.
fio-engine: build-c
	FERRITE_C_LIBS="$(C_LIBS)" scripts/fio-engine.sh $(C_LIBRARY) $(CARGO_TARGET_DIR)/release

# Packages for Debian, and an RPM if rpmbuild is installed, in dist/packages.
packages: C_FEATURES = postgres
packages: PYTHON_FEATURES = postgres
packages: build build-c build-python
	FERRITE_C_LIBS="$(C_LIBS)" scripts/packages.sh $(CARGO_TARGET_DIR)/release dist/packages

# The driver for Kubernetes, in dist/packages. Needs Go.
csi:
	mkdir -p dist/packages
	cd csi && PATH="$$PATH:/usr/local/go/bin" CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.Version=$(VERSION)" \
		-o ../dist/packages/ferrite-csi .

clean:
	cargo clean
