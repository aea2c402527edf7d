"""Processes are identified by pid and start time; those of other machines are unknown."""

import os
import subprocess
import sys

from corymb.pids import began, has_ended, this_process


def test_a_process_that_runs_has_begun_and_one_that_was_waited_for_has_not():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = this_process().replace(f" {os.getpid()} {began(os.getpid())}", f" {child.pid} {began(child.pid)}")
    assert began(child.pid)
    assert not has_ended(name)
    child.communicate()
    assert not began(child.pid)
    assert has_ended(name)


def test_a_later_process_with_the_same_pid_is_another_one():
    where, pid, since = this_process().rsplit(" ", 2)
    assert not has_ended(f"{where} {pid} {since}")
    assert has_ended(f"{where} {pid} {since}0")


def test_processes_on_other_machines_are_unknown():
    assert not has_ended("another-machine 1 12345")
    assert not has_ended("")
