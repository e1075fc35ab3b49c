from skep_client import AsyncClient as AsyncClient
from skep_client import Client as Client
from skep_client import SkepError as SkepError

__version__: str
