"""What a learned model of Skep's own sees and says, in numpy: pure, and the same for training.

    Sight --> Scene: a row of numbers per job, and one of the cluster
    rows --> features --> set network --> a score per (job, action), and one of doing nothing more
    scores --> greedy decoding --> LearnedAdvice

Nothing that decides imports this package: advice crosses the bus as a message.
"""
