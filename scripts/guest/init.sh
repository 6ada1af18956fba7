#!/bin/bash
# What the guest runs instead of an init: unpacks the job from its second disk and runs it. Modules are the job's affair.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LC_ALL=C.UTF-8
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ip link set lo up 2>/dev/null
hostname guest
mkdir /run/job && tar -C /run/job -xf /dev/vdb && cd /run/job && bash ./job.sh
echo "GUEST-EXIT $?"
sync
echo o >/proc/sysrq-trigger
sleep 60
