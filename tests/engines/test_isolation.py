import os
import signal
import threading

import pytest
import torch

from corymb.engines.host import one_line
from corymb.engines.isolation import WouldEndProcess, copies, isolated
from corymb.testing.bad_clients import Unspeakable


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()], ids=lambda error: repr(error))
def test_exceptions_that_end_a_process_become_errors(error):
    with pytest.raises(WouldEndProcess, match=type(error).__name__) as raised, isolated():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_not_the_clients_error(signal_number):
    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal_number, stop)
    try:
        with pytest.raises(KeyboardInterrupt), isolated():
            os.kill(os.getpid(), signal_number)
        assert signal.getsignal(signal_number) is stop
    finally:
        signal.signal(signal_number, before)


def test_keyboard_interrupt_in_another_thread_is_an_error():
    caught = []

    def work():
        try:
            with isolated():
                raise KeyboardInterrupt
        except WouldEndProcess as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_settings_of_torch_are_restored():
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.empty(0)
    with isolated():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("medium")
    now = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.empty(0)
    assert now[:3] == before[:3]
    assert now[3].device == before[3].device


def test_copies_share_no_memory():
    given = {"a": torch.ones(3), "b": (torch.zeros(2), "text")}
    made = copies(given)
    made["a"].zero_()
    made["b"][0].fill_(7)
    assert given["a"].sum() == 3
    assert given["b"][0].sum() == 0
    assert made["b"][1] == "text"


def test_an_error_whose_str_fails_is_named_by_its_type():
    assert one_line(Unspeakable()) == "Unspeakable"
