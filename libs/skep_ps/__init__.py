"""Parameter servers: a job whose servers and workers come and go while it trains.

After DL² (section 5, figure 7). The parameters are cut into chunks (`assign`), each kept by one
server together with its optimizer state. A worker's `step()` sends every server the gradients of
its chunks and receives their new values:

    from skep_ps import SGD
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)    # joins the job

    ps: {servers: 2, min: 1, max: 4}    # in the spec of a Skep job; then `skep resize --servers`
    python -m skep_ps.launch --servers 2 train.py    # in a gang that Skep or torchrun starts
    python -m skep_ps.server                         # one more server, at any time
    python -m skep_ps.ask status | remove server 2 | remove worker 1

Synchronous jobs sum the gradients in the order of the workers' ids and round after every operation
(`store`), so that the parameters are the same bits whatever the servers are, and however often they
changed. With other workers the sum has other terms: the results agree as far as addition is
associative. Asynchronous jobs apply each push by itself.

Everybody has one connection to the coordinator, each worker one to each server, each server one to
each server it copies to. A connection begins with a mutual proof of the job's token and attempt
(`wire`), then carries frames. Sender and meaning:

    worker -> server      push     gradients of version v; answered with the values of v + 1, and
                                   with `hold` if v + 1 is the clock of a change. Repeated under the
                                   same `seq` after a broken connection, it counts once
                          pull     values, with the momentum if asked for (newcomers, checkpoints)
                          put      values from the first worker (the beginning, a checkpoint);
                                   pull and put are answered with `again` if a change was faster
    server -> server      chunks   values, momentum, count of updates; answered when they are stored
                          late     asynchronous: a push for chunks that are elsewhere by now
    member -> coordinator hello    its name and what it knows; DL²'s INC_SERVER from a new server
                          leave, bye    a wish to go (it stays until `go`); the end of training
                          ready, probed, accepted | late, moved, held, switched, failed    answers
    coordinator -> member welcome, begin
                          prepare  the next placement: connect, lay out, allocate and touch memory
                          probe    what is your version? (and: how long is the round trip?)
                          clock    to servers, which accept only while their version is below it
                          move     to servers: all have accepted; copy once the clock is reached
                          released to workers: that clock was passed somewhere, there is a later one
                          switch   decided: take the placement
                          called-off    not decided, and never will be
                          roster   the workers, after one of them ended
                          go, over, fail    the end: of this server's stay, of the job, in error

A change takes effect between versions `clock` and `clock + 1` everywhere. The servers hold the next
update from the moment they reach the clock, and the answer that carries that version tells the
worker, so no worker overruns it, however late a message is. What moves is copied, and the old copy
is deleted only when the change is decided, which is when all copies are stored and every worker
stands at the clock. Until then a newcomer's death, a broken connection or a passed deadline calls
the change off and training goes on; it is tried up to three times.

    dies                     then
    a server                 its parameters are lost: every process ends with an error that says so,
                             and the job restarts from its last checkpoint
    a worker                 after `lost_s` the others go on with one less (the update in progress
                             may count its gradient at some servers and not at others)
    a newcomer               the change is called off
    the coordinator          training goes on; once it is back (`--recover`) it learns everything
                             from the members, calls off what no member has heard decided, repeats
                             what one has
    a connection             is made again within `lost_s`; requests are repeated and count once

Every wait has a deadline, which a suspended process does not use up. Generations are never used
twice, and what is said in an earlier one is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skep_ps.errors import ParameterServerError

if TYPE_CHECKING:
    from skep_ps.optimizer import SGD

__all__ = ["SGD", "ParameterServerError"]


def __getattr__(name: str) -> object:
    if name == "SGD":
        from skep_ps.optimizer import SGD  # The first that needs PyTorch.

        return SGD
    reason = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(reason)
