from skep_client import AsyncClient as AsyncClient
from skep_client import Client as Client
from skep_client import SkepError as SkepError
from skep_client.magic import load_ipython_extension as load_ipython_extension

__version__: str
