"""What runs inside the user's training process: mini-batch counts without a change to the script.

`python -m skep_job script.py` runs the script as `python script.py` would and reports to the agent
whose socket the environment names. Without that socket it adds nothing. Standard library only; the
package meets the rest of Skep in a socket protocol (`skep_job.reporter`) and nowhere else.

Importing the package has no effect and imports nothing, so that it is safe everywhere.
"""
